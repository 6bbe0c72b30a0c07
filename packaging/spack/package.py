# SPDX-License-Identifier: MIT
# ruff: noqa: F403, F405 - the names of a recipe are Spack's
"""The Spack recipe, of a checkout: it has no address to fetch hmd from.

``spack repo create hmd-repo``, this file as ``packages/py_hmd_tiering/package.py`` in what that
made, ``spack repo add`` of it; then ``spack dev-build py-hmd-tiering@main`` in the checkout.
"""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHmdTiering(PythonPackage):
    """hmd, the heterogeneous memory daemon: keeps hot pages of running programs in fast memory."""

    license("MIT")
    version("main")
    version("0.1.0")

    variant("plot", default=True, description="pictures")
    variant("parquet", default=False, description="export to Parquet")
    variant("symbols", default=True, description="names of functions")
    variant("frames", default=False, description="samples as pandas or polars frames")

    depends_on("c", type="build")
    depends_on("numactl")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-shtab@1.13:", type="build")
    with default_args(type=("build", "run")):
        depends_on("py-annotated-types@0.6:")
        depends_on("py-cffi@1.17:")
        depends_on("py-numba@0.60:")
        depends_on("py-numpy@1.26:")
        depends_on("py-prometheus-client@0.20:")
        depends_on("py-psutil@6:")
        depends_on("py-pydantic@2.9:")
        depends_on("py-pyyaml@6:")
        depends_on("py-rich@13.7:")
        depends_on("py-matplotlib@3.8:", when="+plot")
        depends_on("py-pyarrow@15:", when="+parquet")
        depends_on("py-pyelftools@0.29:", when="+symbols")
        depends_on("py-pandas@2:", when="+frames")
        depends_on("py-polars@1:", when="+frames")
