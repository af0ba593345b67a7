"""Which documents a sample was made of, back to the files that were preprocessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron_glm.config.phases import all_sources, run_phases
from megatron_glm.config.schema import Config, Source
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.manifest import Manifest, read_manifest
from megatron_glm.data.provenance import document_origin
from megatron_glm.errors import DataError


class SampleDocuments:
    """Looks up the documents of samples, for people: nothing of it is read while all is well.

    Args:
        dataset: opened with the configuration.
    """

    def __init__(self, config: Config, dataset: SampleDataset):
        self._sources = [source for _, source in all_sources(run_phases(config))]
        self._dataset = dataset
        self._manifests: dict[str, Manifest] = {}

    def __call__(self, index: int) -> dict[str, Any]:
        """A sample's source and documents: what JSON can hold.

        Of each document: its number in the source, the pair that holds it and its number there. Where we have written
        the pair: its input file, and its first byte or its row there; or why that cannot be read.
        """
        origin, documents = self._dataset.documents(index)
        source = self._sources[origin.source]
        return {
            "sample": index,
            "source": source.name,
            "stream_tokens": [origin.start, origin.stop],
            "documents": [self._document(source, origin.source, number) for number in documents],
        }

    def _document(self, source: Source, place: int, number: int) -> dict[str, Any]:
        pair, inside = self._dataset.stored_at(place, number)
        found = {"document": number, "pair": str(pair), "number_in_pair": inside}
        if source.path is None:
            return found
        try:
            if source.path not in self._manifests:
                self._manifests[source.path] = read_manifest(Path(source.path))
            input_place = document_origin(Path(source.path), self._manifests[source.path], "train", number)
        except DataError as error:
            return {**found, "origin": str(error)}
        return {**found, "file": input_place.path, input_place.unit: input_place.place}
