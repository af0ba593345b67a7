"""One thing has no plural."""

import pytest

from megatron_glm.counting import count_text


@pytest.mark.parametrize(("number", "text"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards")])
def test_one_thing_has_no_plural(number, text):
    assert count_text(number, "shard") == text
