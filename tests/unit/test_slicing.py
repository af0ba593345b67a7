"""`--slice`: every slow test has its turn, and a commit always runs the same ones."""

from types import SimpleNamespace

from tests.slicing import SLICES, slice_of


def test_the_slices_of_all_commits_are_all_tests():
    items = list(range(50))
    slices = [slice_of(items, f"{number:040x}") for number in range(SLICES)]
    assert sorted(item for part in slices for item in part) == items
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_the_slice_depends_on_the_commit_alone():
    commit = "72a99d2f0c0000000000000000000000000000a1"
    assert slice_of(range(50), commit) == slice_of(range(50), commit)
    assert slice_of(range(50), commit) != slice_of(range(50), commit[:-1] + "2")


def test_the_option_leaves_out_slow_tests_only(request):
    # The plugin itself, with stand-ins for what pytest collects.
    class Item:
        def __init__(self, slow):
            self.get_closest_marker = lambda name: slow

    class Config:
        getoption = staticmethod(lambda name: "0")
        hook = SimpleNamespace(pytest_deselected=lambda items: None)

    items = [Item(slow=number >= 3) for number in range(3 + 2 * SLICES)]
    plugin = request.config.pluginmanager.get_plugin(str(request.config.rootpath / "tests" / "conftest.py"))
    quick = items[:3]
    plugin.pytest_collection_modifyitems(Config, items)
    assert items[:3] == quick
    assert len(items) == 3 + 2
