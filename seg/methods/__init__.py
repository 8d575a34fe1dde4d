"""Adaptation methods: the table of ``--method``, and one file for each."""

from seg.methods.advent import AdvEnt
from seg.methods.method import Method
from seg.methods.minent import MinEnt
from seg.methods.self_training import SelfTraining
from seg.methods.source import SourceOnly

METHODS: dict[str, type[Method]] = {
    "source": SourceOnly,
    "minent": MinEnt,
    "advent": AdvEnt,
    "self-training": SelfTraining,
}
