"""`--slice`: every slow test has its turn, a commit always runs the same ones, and the time is kept."""

import pytest

from tests.slicing import SLICES, slice_of

pytest_plugins = "pytester"


def test_the_slices_of_all_commits_are_all_tests():
    items = list(range(50))
    slices = [slice_of(items, f"{number:040x}") for number in range(SLICES)]
    assert sorted(item for part in slices for item in part) == items
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_each_test_comes_first_for_some_commit():
    items = list(range(50))
    assert {slice_of(items, f"{number:040x}")[0] for number in range(SLICES * len(items))} == set(items)


def test_the_slice_depends_on_the_commit_alone():
    commit = "72a99d2f0c0000000000000000000000000000a1"
    assert slice_of(range(50), commit) == slice_of(range(50), commit)
    assert slice_of(range(50), commit) != slice_of(range(50), commit[:-1] + "2")


def test_nothing_to_slice_is_no_error():
    assert slice_of([], "a1") == []


@pytest.fixture
def run(pytester):
    """Runs pytest on twelve slow tests and two quick ones, with the plugin."""
    pytester.makeconftest("""
        from itertools import count
        from tests.slicing import SlicePlugin

        def pytest_configure(config):
            config.addinivalue_line("markers", "slow: takes long")
            # Every look at the clock takes a second.
            config.pluginmanager.register(SlicePlugin("0", config.getoption("minutes"), count().__next__))

        def pytest_addoption(parser):
            parser.addoption("--minutes", type=float)
        """)
    pytester.makepyfile("""
        import pytest

        def test_quick_one(): pass
        def test_quick_two(): pass

        @pytest.mark.slow
        @pytest.mark.parametrize("number", range(12))
        def test_slow(number):
            assert number % 6 == 0
        """)
    return pytester.runpytest


def test_the_slow_tests_of_the_slice_run_and_all_others(run):
    result = run()
    result.assert_outcomes(passed=4, deselected=10)
    result.stdout.fnmatch_lines(["slice 1 of 6: 4 of 4 tests ran"])


def test_what_the_time_does_not_allow_is_told_and_no_failure(run):
    result = run("--minutes", "0.05")
    assert result.ret == 0
    result.assert_outcomes(passed=2, deselected=10)
    result.stdout.fnmatch_lines(["slice 1 of 6: 2 of 4 tests ran; the 0.05 minutes are up, 2 are left to other*"])
