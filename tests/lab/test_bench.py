"""Tests of the benchmark's pure parts."""

import json
import unittest
from unittest import mock

from . import bench, disks
from .bench_rows import Row, against, alternate

MOUNTS = r"""27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
40 27 0:40 / /my\040disk rw shared:1 master:2 - xfs /dev/vdb rw
41 27 0:41 / /tmp rw - ext4 /dev/vdc rw
42 27 0:42 / /tmp rw - tmpfs tmpfs rw
"""


def row(scenario: str, ours: float, theirs: float) -> Row:
    made = Row(scenario, ours, peers={"peer": theirs})
    against(made, "peer", 1.0, 0.5)
    return made


class Disks(unittest.TestCase):
    def test_the_nearest_mount_above_a_path_says_its_type(self):
        for path, kind in (("/", "ext4"), ("/dev/shm", "tmpfs"), ("/dev/shm/a", "tmpfs"), ("/dev/shmem", "ext4"),
                           ("/my disk/x", "xfs"), ("/tmp/x", "tmpfs")):
            self.assertEqual(disks.type_of(path, MOUNTS), kind, path)

    def test_the_first_place_that_is_not_in_memory_is_chosen(self):
        self.assertEqual(disks.choose(["/tmp", "/dev/shm", "/my disk", "/home"], MOUNTS), "/my disk")
        self.assertIsNone(disks.choose(["/tmp", "/dev/shm"], MOUNTS))


class Table(unittest.TestCase):
    def test_a_verdict_compares_with_floor_and_aim(self):
        verdicts = [row("a", ours, 10).verdict() for ours in (5, 10, 11)]
        self.assertEqual(verdicts, ["aim", "floor", "MISS"])

    def test_samples_alternate_and_the_median_counts(self):
        order = []
        samples = {"a": iter((9, 1, 2)), "b": iter((5, 5, 5))}
        actions = {name: (lambda name=name: order.append(name) or next(samples[name])) for name in samples}
        self.assertEqual(alternate(actions, 3), {"a": 2, "b": 5})
        self.assertEqual("".join(order), "abbaab")

    def test_each_place_has_its_column_in_the_order_of_the_run(self):
        lines = bench.table([{"disk": row("x", 20, 10), "tmpfs": row("x", 4, 10)}, {"disk": row("y", 4, 10)}])
        self.assertEqual([name for name in lines[0] if name in ("disk", "tmpfs")], ["disk", "tmpfs"])
        cells = [dict(zip(lines[0], line)) for line in lines[1:]]
        self.assertEqual((cells[0]["disk"], cells[0]["tmpfs"]), ("20.00 ms", "4.00 ms"))
        ratio, verdict = lines[0].index("ratio"), lines[0].index("verdict")
        self.assertEqual((lines[1][ratio], lines[1][verdict]), ("2.00", "MISS"))
        self.assertEqual(lines[1][lines[0].index("tmpfs") + 1:][:2], ("0.40", "aim"))
        self.assertEqual(cells[1]["tmpfs"], "")

    def test_the_first_place_is_the_row_in_json_and_tmpfs_is_within_it(self):
        found = json.loads(bench.as_json([{"disk": row("x", 20, 10), "tmpfs": row("x", 4, 10)}]))
        self.assertEqual(found["schema"], "swarm.bench/1")
        [one] = found["rows"]
        self.assertEqual((one["scenario"], one["ours"], one["on"], one["verdict"]), ("x", 20, "disk", "MISS"))
        self.assertEqual((one["tmpfs"]["ours"], one["tmpfs"]["verdict"]), (4, "aim"))

    def test_a_scenario_is_measured_in_each_place_in_turn(self):
        seen = []

        def scenario(quick):
            seen.append(bench.os.environ["LAB_TMP"])
            return [row("x", len(seen), 10)]

        with mock.patch.dict(bench.os.environ), mock.patch.dict(bench.ROWS, {"x": scenario, "idle": scenario}):
            places = {"disk": "/d", "tmpfs": "/m"}
            rows, findings = bench.measure("x", places, (True,))
            self.assertEqual((seen, findings), (["/d", "/m"], []))
            self.assertEqual([(place, one.ours) for place, one in rows[0].items()], [("disk", 1), ("tmpfs", 2)])
            self.assertEqual(list(bench.measure("idle", places, (True,))[0][0]), ["disk"], "memory makes no difference")


if __name__ == "__main__":
    unittest.main()
