"""Translation of the stream graph to the job plan: chains of operators and the channels between their tasks.

Operators are chained, as a tree, along a forward edge between operators of equal parallelism, if that edge is the only
input. A keyed operator, a union, a change of parallelism and any explicit partitioning start a new vertex; a keyed operator
whose input is partitioned by its key already does not, nor does one that follows a single subtask as a single subtask: it
gets every key.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.common.config_options import PipelineOptions
from holdfast.common.configuration import Configuration
from holdfast.common.formats.columns import Fields
from holdfast.common.system.modes import RuntimeExecutionMode
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation, Types
from holdfast.common.watermark_strategy import timestamps_only
from holdfast.errors import ConfigurationError
from holdfast.graph.execution_mode import in_batch
from holdfast.graph.misuse import check_functions
from holdfast.graph.operator_state import check_operator_state
from holdfast.graph.pickling import check_picklable, own_copy
from holdfast.graph.read_first import check_read_first
from holdfast.graph.stream_graph import Edge, StreamGraph
from holdfast.graph.timestamps import check_timestamps
from holdfast.graph.transformations import OperatorTransformation, Physical, SourceTransformation
from holdfast.graph.uids import records_uid
from holdfast.runtime.operators.stateless import IdentityOperator
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.plan.plan import Chained, ChainEdge, Channel, InputKind, JobPlan, Partitioning, SourceSpec, Vertex
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state.keys.key_groups import MAX_KEY_GROUPS

__all__ = ["job_plan"]

_INPUT_KINDS = {Partitioning.HASH: InputKind.KEYED, Partitioning.BROADCAST: InputKind.BROADCAST}


@dataclass
class _Chain:
    """A vertex under construction: its operators in program order, the head first."""

    id: int
    head: Physical
    members: list[Physical] = field(default_factory=list)
    level: int = 0


def job_plan(
    roots: Iterable[OperatorTransformation], config: Mapping[str, str], *, name: str, chaining: bool = True
) -> JobPlan:
    """Create the plan of a job from its roots and all their inputs.

    Args:
        roots: The sinks, and the operators with unread output.
        config: The effective configuration, under Flink's keys.
        name: The job's name.
        chaining: Whether operators may share a task.

    Raises:
        ConfigurationError: the program cannot run as written.
    """
    graph = StreamGraph.of(roots)
    check_timestamps(graph)
    check_operator_state(graph)
    check_functions(graph)
    for operator in graph.operators:
        check_picklable(operator)
    batch = in_batch(graph.operators, Configuration.from_dict(config))
    mode = RuntimeExecutionMode.BATCH if batch else RuntimeExecutionMode.STREAMING
    config = {**config, PipelineOptions.RUNTIME_MODE.key: mode.name}
    if config.get("pipeline.auto-generate-uids", "true").strip().lower() == "false":
        _require_uids(graph.operators)
    settings = JobSettings.of(config)
    max_parallelism = Configuration.from_dict(config).get(PipelineOptions.MAX_PARALLELISM)
    # Batches are sorted by key, and deadlines cut the input, between tasks.
    keyed_alone = not batch and settings.aligned_timeout_ms is None
    chains = _chain(graph, chaining, max_parallelism if keyed_alone else None)
    channel_ids = itertools.count()
    plan = JobPlan(
        name=name,
        vertices=tuple(_vertex(c, graph, chains, channel_ids, max_parallelism, batch) for c in _distinct(chains)),
        config=config,
        settings=settings,
    )
    check_read_first(plan)
    return plan


def _require_uids(operators: Sequence[Physical]) -> None:
    without = [str(o) for o in operators if o.uid is None]
    if without:
        raise ConfigurationError(
            "pipeline.auto-generate-uids is off, so every operator needs a uid of its own; call uid(...) on "
            + ", ".join(without)
            + "."
        )


def _chain(graph: StreamGraph, chaining: bool, max_parallelism: int | None) -> dict[int, _Chain]:
    """Return the chain of each operator, by operator id.

    Args:
        graph: The program.
        chaining: Whether operators may share a task.
        max_parallelism: As ``pipeline.max-parallelism``; None: no chain goes through a partitioning by key.
    """
    chains: dict[int, _Chain] = {}
    vertex_ids = itertools.count()
    for operator in graph.operators:
        inputs = graph.into(operator)
        before = chains[inputs[0].producer.id] if len(inputs) == 1 else None
        if chaining and before is not None and _can_chain(inputs[0], before, max_parallelism):
            chain = before
        else:
            level = max((1 + chains[e.producer.id].level for e in inputs), default=0)
            chain = _Chain(next(vertex_ids), operator, level=level)
        chain.members.append(operator)
        chains[operator.id] = chain
    return chains


def _can_chain(edge: Edge, before: _Chain, max_parallelism: int | None) -> bool:
    if edge.consumer.starts_chain or edge.producer.ends_chain:
        return False
    if edge.partitioning is Partitioning.FORWARD:
        return edge.key_selector is not None or not edge.consumer.keyed
    return max_parallelism is not None and _gets_every_key(edge, before, max_parallelism)


def _gets_every_key(edge: Edge, before: _Chain, max_parallelism: int) -> bool:
    """Whether a partitioning by key goes from a single subtask to a single one, with the same key groups."""
    return (
        edge.partitioning is Partitioning.HASH
        and edge.consumer.keyed
        and edge.columns is None
        and edge.producer.parallelism == edge.consumer.parallelism == 1
        and _max_parallelism(before.head, max_parallelism) == _max_parallelism(edge.consumer, max_parallelism)
    )


def _max_parallelism(operator: Physical, of_job: int) -> int:
    """The number of an operator's key groups; ``of_job``: as ``pipeline.max-parallelism``.

    Where none is set, Flink's rule: a power of two that is at least one and a half times the parallelism, from 128 up.
    """
    given = operator.max_parallelism or of_job
    if given > 0:
        return given
    return min(max(1 << (operator.parallelism + operator.parallelism // 2 - 1).bit_length(), 128), MAX_KEY_GROUPS)


def _alone(operator: Physical) -> bool:
    """Whether the operator itself is set to run in one subtask, as by ``force_non_parallel()``."""
    return operator.parallelism == operator.max_parallelism == 1


def _distinct(chains: Mapping[int, _Chain]) -> list[_Chain]:
    return sorted({id(c): c for c in chains.values()}.values(), key=lambda c: c.id)


def _vertex(
    chain: _Chain,
    graph: StreamGraph,
    chains: Mapping[int, _Chain],
    channel_ids: Iterator[int],
    job_max_parallelism: int,
    batch: bool,
) -> Vertex:
    head = chain.head
    keyed = isinstance(head, OperatorTransformation) and head.keyed
    inputs = _inputs(head, graph)
    max_parallelism = _max_parallelism(head, job_max_parallelism)
    if keyed and head.parallelism > max_parallelism:
        raise ConfigurationError(
            f"Operator {head} has parallelism {head.parallelism}, but only {max_parallelism} key groups to share out. "
            f"Raise them with set_max_parallelism(...) or pipeline.max-parallelism (they cannot change once there are "
            f"checkpoints), or lower the parallelism."
        )

    source: SourceSpec | None = None
    members = list(chain.members)
    if isinstance(head, SourceTransformation):
        source = SourceSpec(
            uid=graph.uids[head.id],
            uid_given=head.uid is not None,
            name=head.name,
            source=head.source,
            watermark_strategy=timestamps_only(head.watermark_strategy) if batch else head.watermark_strategy,
        )
        out = graph.out_of(head)
        if len(out) == 1 and chains[out[0].consumer.id] is chain and out[0].key_selector is None:
            members.remove(head)  # its records go directly to the single operator that reads them

    position = {member.id: i for i, member in enumerate(members)}
    chained: list[Chained] = []
    for member in members:
        edges: list[ChainEdge] = []
        channels: list[Channel] = []
        for edge in graph.out_of(member):
            target = chains[edge.consumer.id]
            if target is chain:
                keys = (edge.key_selector, _lasting(edge.key_type)) if edge.consumer.keyed else (None, None)
                edges.append(ChainEdge(position[edge.consumer.id], edge.side_output, *keys))
            else:
                channels.append(
                    Channel(
                        id=next(channel_ids),
                        target=target.id,
                        partitioning=edge.partitioning,
                        side_output=edge.side_output,
                        key_selector=edge.key_selector,
                        partitioner=edge.partitioner,
                        input_index=edge.input_index,
                        key_type=_lasting(edge.key_type),
                        columns=edge.columns,
                    )
                )
        uid = graph.uids[member.id]
        factory: OperatorFactory
        if isinstance(member, OperatorTransformation):
            factory = own_copy(member).in_batch() if batch else own_copy(member)
        else:  # several operators read this source, or one by key: an operator passes its records on
            uid, factory = records_uid(uid), IdentityOperator()
        chained.append(
            Chained(
                uid,
                member.uid is not None,
                member.name,
                factory,
                tuple(edges),
                tuple(channels),
                _output_type(member),
                _side_types(member, graph),
                (declared := _key_type(member, graph)),
                declared or _type_of_fields(member, graph),
            )
        )
    return Vertex(
        id=chain.id,
        name=_chain_name(chain, graph, chains),
        parallelism=head.parallelism,
        max_parallelism=max_parallelism,
        # One subtask has all key groups, however many its state has: also of window_all(), after change_max_parallelism().
        max_parallelism_given=(head.max_parallelism or job_max_parallelism) > 0 and not _alone(head),
        level=chain.level,
        chain=tuple(chained),
        source=source,
        inputs=inputs,
    )


def _inputs(head: Physical, graph: StreamGraph) -> tuple[InputKind, ...]:
    kinds: dict[int, set[InputKind]] = {}
    for edge in graph.into(head):
        kept = edge.partitioning is Partitioning.FORWARD and edge.key_selector is not None  # partitioned by key before
        kind = InputKind.KEYED if kept else _INPUT_KINDS.get(edge.partitioning, InputKind.PLAIN)
        kinds.setdefault(edge.input_index, set()).add(kind)
    # A union of streams of different types has no common type.
    return tuple(kinds[i].pop() if len(kinds[i]) == 1 else InputKind.PLAIN for i in sorted(kinds))


def _output_type(operator: Physical) -> TypeInformation | None:
    if not isinstance(operator, OperatorTransformation) or operator.passes_elements or operator.output_type is None:
        return None
    return _lasting(operator.output_type)


def _lasting(declared: TypeInformation | None) -> TypeInformation | None:
    """Return the type if it describes the values."""
    return None if declared is None or declared.is_pickled else declared


def _key_type(operator: Physical, graph: StreamGraph) -> TypeInformation | None:
    declared = {type_ for edge in graph.into(operator) if (type_ := _lasting(edge.key_type)) is not None}
    if len(declared) > 1:
        raise ConfigurationError(
            f"The inputs of {operator} share its state, but their keys are declared with different types: "
            f"{' and '.join(sorted(map(repr, declared)))}. Declare one type in all key_by(...)."
        )
    return next(iter(declared), None)


def _type_of_fields(operator: Physical, graph: StreamGraph) -> TypeInformation | None:
    """The type of keys that are fields of elements with a declared type; None if some are others."""
    found = set()
    for edge in graph.into(operator):
        if edge.key_selector is not None:
            selector, declared = edge.key_selector, edge.partitioned_type
            types = {}
            if isinstance(selector, Fields) and isinstance(declared, RowTypeInfo):
                types = dict(zip(declared.get_field_names(), declared.get_field_types()))
            if not isinstance(selector, Fields) or not types.keys() >= set(selector.names):
                return None
            read = [types[name] for name in selector.names]
            found.add(read[0] if len(read) == 1 else Types.TUPLE(read))
    return found.pop() if len(found) == 1 else None


def _side_types(operator: Physical, graph: StreamGraph) -> dict[str, TypeInformation]:
    types: dict[str, TypeInformation] = {}
    for edge in graph.out_of(operator):
        tag, declared = edge.side_output, edge.side_type
        if tag is None or declared is None:
            continue
        if types.setdefault(tag, declared) != declared:
            raise ConfigurationError(
                f"The side output {tag!r} of {operator} is read with two types, {types[tag]!r} and {declared!r}. Give each "
                "side output an OutputTag with an id of its own."
            )
    return {tag: declared for tag, declared in types.items() if not declared.is_pickled}


def _chain_name(chain: _Chain, graph: StreamGraph, chains: Mapping[int, _Chain]) -> str:
    """Return the name in Flink's form: ``Source: numbers -> Map -> (Filter, Sink: out)``."""

    def name(operator: Physical) -> str:
        next_ones = [e.consumer for e in graph.out_of(operator) if chains[e.consumer.id] is chain]
        names = [name(each) for each in dict.fromkeys(next_ones)]
        if not names:
            return display_name(operator)
        rest = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return f"{display_name(operator)} -> {rest}"

    return name(chain.head)


def display_name(operator: Physical) -> str:
    """Return the operator's name for plans and user interfaces, e.g. ``Source: payments``."""
    if isinstance(operator, SourceTransformation):
        return f"Source: {operator.name}"
    if isinstance(operator, OperatorTransformation) and operator.is_sink:
        return f"Sink: {operator.name}"
    return operator.name
