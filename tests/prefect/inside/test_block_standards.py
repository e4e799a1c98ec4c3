"""The standards that Prefect holds its own collections' blocks to, on each block of this one.

Not asked: a logo and a page of documentation, both on a site of the project's own, which there is none of.
"""

from importlib.metadata import entry_points

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites import BlockStandardTestSuite

from prefect_collection import collection

BLOCKS = [getattr(collection, name) for name in collection.__all__]


@pytest.mark.promise("F1")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
class TestBlockStandards(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, request: pytest.FixtureRequest) -> type[Block]:
        return request.param  # type: ignore[no-any-return]

    test_has_a_valid_image = None  # type: ignore[assignment]
    test_has_a_documentation_url = None  # type: ignore[assignment]


def test_prefect_finds_every_block() -> None:
    (point,) = (point for point in entry_points(group="prefect.collections") if point.name == "dispatch")
    assert point.load() is collection
    assert {block.get_block_type_slug() for block in BLOCKS} == {
        "dispatch-job",
        "dispatch-store",
        "dispatch-slurm-cluster",
        "dispatch-kubernetes-cluster",
    }
    for block in BLOCKS:
        assert block._calculate_schema_checksum().startswith("sha256:")
