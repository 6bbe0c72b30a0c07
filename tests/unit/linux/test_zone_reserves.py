# SPDX-License-Identifier: MIT
"""Free memory of a node that the kernel reserves."""

from __future__ import annotations

from pathlib import Path

from hmd.linux.node_memory import REFRESH_S, Reserves, Watermark, reserve_bytes

# Of a guest of 6.12 with two nodes of 1 GiB, shortened; low zones protect themselves.
ZONEINFO = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 105
  pages free     3776
        min      15
        low      18
        high     21
        managed  3840
        protection: (0, 947, 947, 947, 947)
      nr_free_pages 3776
  pagesets
    cpu: 0
              count:    0
              high:     0
Node 0, zone    DMA32
  pages free     235570
        min      988
        low      1235
        high     1482
        managed  244220
        protection: (0, 0, 0, 0, 0)
Node 0, zone  Movable
  pages free     0
        min      32
        low      32
        managed  0
        protection: (0, 0, 0, 0, 0)
Node 1, zone    DMA32
  pages free     255389
        low      1305
        high     1566
        managed  257959
        protection: (0, 0, 0, 0, 0)
"""


def test_reserve_bytes_sums_watermarks_and_protection_of_zones() -> None:
    pages = {0: 18 + 947 + 1235, 1: 1305}
    assert reserve_bytes(ZONEINFO.encode()) == {n: 4096 * count for n, count in pages.items()}


def test_reserve_bytes_to_high_watermark_includes_what_kswapd_keeps_free() -> None:
    pages = {0: 21 + 947 + 1482, 1: 1566}
    found = reserve_bytes(ZONEINFO.encode(), Watermark.HIGH)
    assert found == {n: 4096 * count for n, count in pages.items()}


def test_reserve_bytes_of_other_text_empty() -> None:
    assert reserve_bytes(b"") == {}
    assert reserve_bytes(b"Node x, zone\n  low many\n") == {}


def test_reserves_reread_after_interval(tmp_path: Path) -> None:
    reserves = Reserves(tmp_path)
    assert reserves.at(0.0) == {}
    (tmp_path / "zoneinfo").write_text(ZONEINFO)
    assert reserves.at(REFRESH_S / 2) == {}
    assert reserves.at(REFRESH_S)[1] == 1305 * 4096


def test_reserves_of_this_machine_positive() -> None:
    reserves = Reserves().at(0.0)
    assert reserves
    assert all(0 <= kept < 1 << 40 for kept in reserves.values())
    assert any(reserves.values())
