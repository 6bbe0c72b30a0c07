# SPDX-License-Identifier: MIT
"""Write hmd's manual pages and shell completions: ``python packaging/pages/generate.py FOLDER``.

FOLDER becomes the ``share`` of an installation. The sources are the parsers of the command line
and the schema of the configuration, so that new options and settings are documented without
further work. The build of a wheel calls this (cffi_build.py). With SOURCE_DATE_EPOCH set, equal
sources give equal bytes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from checkout import ROOT

COMPLETIONS = {
    "bash": "bash-completion/completions/hmd",
    "zsh": "zsh/site-functions/_hmd",
    "fish": "fish/vendor_completions.d/hmd.fish",
}


def main(folder: Path) -> None:
    """Write everything below a folder; what is there is overwritten."""
    import command_pages
    import config_page
    import daemon_page
    from completions import completions

    from hmd import __version__

    made_s = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    date = time.strftime("%Y-%m-%d", time.gmtime(made_s))
    files = {
        **{f"man/man1/{name}": page for name, page in command_pages.pages(date, __version__)},
        "man/man5/hmd.yaml.5": config_page.page(date, __version__),
        "man/man8/hmd.8": daemon_page.page(date, __version__, ROOT / "systemd"),
        **{COMPLETIONS[shell]: script for shell, script in completions().items()},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    main(Path(sys.argv[1]))
