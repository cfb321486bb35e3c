"""The dry run: the plan of a recipe, printed before anything is loaded.

It needs no weights, no network and no torch.
"""

import os
from math import ceil
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmrm.data.display.console import is_first_rank, plain_console
from mmrm.data.preparation.decisions import decision_counts_in_words, read_decisions
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.family import Shape
from mmrm.models.families.hub_names import similar_hub_id
from mmrm.models.families.registry import family_of_shape
from mmrm.train.planning.machines import FILLED, RESERVE, MachineFit, fit, need
from mmrm.train.planning.machines import GPUS as SIZES
from mmrm.train.planning.memory import (
    GIB,
    activations,
    checkpoint_bytes,
    per_rank,
    trained,
    writing_price,
)
from mmrm.train.planning.step_cost import (
    BETWEEN,
    COMPARED,
    INSIDE,
    MFU,
    NODE,
    PEAK,
    ROW_TOKENS,
    StepCost,
    full_row,
    record_tokens,
    step_cost,
)
from mmrm.train.recipe.deepspeed_config import NONE, deepspeed_names, offloads, stage, sums_in_fp32
from mmrm.train.recipe.epoch import UNKNOWN, epoch_records, known_steps, planned_tokens
from mmrm.train.recipe.input_paths import absent, exists
from mmrm.train.recipe.parsing import Launch
from mmrm.train.recipe.recipe import Recipe

GPUS = (1, 2, 8, 64, 512)
"""Numbers of GPUs for which the cost of a step is shown."""
RANKS = (1, 2, 8, 64)
"""Numbers of ranks that the memory table always shows."""
MACHINES = (1, 2, 8)
"""Numbers of GPUs for which the plan always says if the recipe fits."""
LOWEST_LORA_RATE = 2e-5
"""LoRA at a lower learning rate than this gets a warning."""

SUMMED_IN_BF16 = "gradients of a step's rows are summed in bf16: zero2 and zero3 sum them in fp32"


def dry_run(launch: Launch) -> None:
    """Print the plan of the recipe that the command line `launch` names, on the first rank only."""
    if is_first_rank():
        num_gpus = launch.gpus or int(os.environ.get("WORLD_SIZE", "1"))
        show(launch.recipe, num_gpus, plain_console(highlight=False))


def show(recipe: Recipe, num_gpus: int, console: Console) -> None:
    """Print the plan of `recipe`: what it does, on which machines it fits, what it costs there.

    Args:
        recipe: The recipe.
        num_gpus: A number of GPUs that every table shows, next to usual ones.
        console: The console to print to.
    """
    plan = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for topic, lines in plan_lines(recipe).items():
        for index, line in enumerate(lines):
            heading = topic if index == 0 else ""
            plan.add_row(Text(heading, "bold"), line)
    console.print(plan)

    shape = shape_of(recipe.backbone.path)
    if shape is None:
        console.print("\nMemory is not estimated: the backbone's config.json is not at hand.")
        return
    show_memory(recipe, shape, sorted({*RANKS, num_gpus}), console)
    if recipe.backbone.path != "embedded":
        show_machines(recipe, shape, sorted({*MACHINES, num_gpus}), console)
        show_cost(recipe, shape, sorted({*GPUS, num_gpus}), console)


def show_memory(recipe: Recipe, shape: Shape, all_ranks: list[int], console: Console) -> None:
    """Print the memory of a rank by DeepSpeed configuration and number of ranks."""
    console.print("\nGiB a rank for weights, gradients and optimizer states. ← is this recipe.")
    columns = [
        Column("1 rank" if ranks == 1 else f"{ranks} ranks", justify="right") for ranks in all_ranks
    ]
    table = Table("deepspeed", *columns)
    for name in deepspeed_names():
        cells = []
        for ranks in all_ranks:
            memory = per_rank(recipe, shape, name, ranks)
            cell = f"{memory.device / GIB:.2f}"
            if memory.host:
                cell += f" + {memory.host / GIB:.2f} host"
            cells.append(cell)
        if name == recipe.deepspeed:
            table.add_row(f"{name} ←", *cells, style="bold")
        else:
            table.add_row(name, *cells)
    console.print(table)

    row = full_row(recipe, shape)
    row_activations = activations(recipe, shape, row.tokens, row.patches)
    console.print(
        f"On top: {row_activations / GIB:.1f} GiB of activations for a row of {row.tokens:,} tokens "
        f"and {row.patches:,} vision patches, and what the allocator and the libraries take.",
        soft_wrap=True,
    )
    line = writing_line(recipe, shape, [ranks for ranks in all_ranks if ranks > 1])
    if line:
        console.print(line)


def show_machines(recipe: Recipe, shape: Shape, nums_of_gpus: list[int], console: Console) -> None:
    """Print on which GPUs the recipe fits, and what to change for those on which it does not."""
    console.print(
        f"\nDoes it fit? GiB a GPU for rows of one record, {RESERVE / GIB:.0f} of them in reserve; "
        f"at most {FILLED:.0%} of the GPU are planned for. Texts that the model writes, and judges in this process, come on top.",
        soft_wrap=True,
    )
    columns = [
        Column(f"{gpu.name}, {gpu.usable / GIB:.0f} usable", justify="right") for gpu in SIZES
    ]
    table = Table("GPUs", *columns, "largest part")
    machines_by_advice: dict[str, list[str]] = {}
    for num_gpus in nums_of_gpus:
        cells = []
        as_it_is = need(recipe, shape, num_gpus)
        for gpu in SIZES:
            answer = fit(recipe, shape, gpu, num_gpus)
            if not answer.changes and answer.fits:
                cells.append(f"fits: {as_it_is.device / GIB:.0f}")
                continue
            cells.append(f"no: {as_it_is.device / GIB:.0f}")
            machine = f"{num_gpus} × {gpu.name}"
            machines_by_advice.setdefault(advice(answer), []).append(machine)
        largest = as_it_is.largest_part
        cells.append(f"{largest}, {as_it_is.parts[largest] / GIB:.0f}")
        table.add_row(f"{num_gpus:,}", *cells)
    console.print(table)
    for text, machines in machines_by_advice.items():
        console.print(f"{', '.join(machines)}: {text}", soft_wrap=True)


def advice(answer: MachineFit) -> str:
    """Return the changes with which a recipe fits on a machine, as text for the plan."""
    if not answer.fits:
        return "no change known here makes it fit; take a smaller backbone or more GPUs"
    text = f"{' '.join(answer.changes)} makes it {answer.need.device / GIB:.0f} GiB"
    if answer.need.host:
        text += f" and {answer.need.host / GIB:.0f} GiB of host memory a GPU, at slower steps"
    return text


def show_cost(recipe: Recipe, shape: Shape, gpus: list[int], console: Console) -> None:
    """Print what a step takes on several GPUs, how long the run is, and if the network limits it."""
    console.print(cost_assumptions(recipe, shape), soft_wrap=True)
    steps = known_steps(recipe)
    stages = [name.replace("_", " ") for name in COMPARED]
    columns = [
        Column(name, justify="right")
        for name in ("rows", "compute s", *stages, "the run", "GPU hours")
    ]
    # Nine columns fit into a terminal of 80 characters only without vertical lines.
    table = Table("GPUs", *columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    first_held_up: tuple[int, StepCost] | None = None
    for ranks in gpus:
        cost = step_cost(recipe, shape, ranks)
        waiting = cost.waiting[recipe.deepspeed]
        received = [
            f"{rounded(cost.received[name] / 1e9, 1)} ({rounded(cost.waiting[name], 2)})"
            for name in COMPARED
        ]
        durations = ["–", "–"]
        if steps is not None:
            hours = steps * max(cost.compute, waiting) / 3600
            durations = [duration(hours), rounded(hours * ranks, 1)]
        table.add_row(f"{ranks:,}", str(cost.rows), rounded(cost.compute, 2), *received, *durations)
        if waiting > cost.compute and first_held_up is None:
            first_held_up = (ranks, cost)
    console.print(table)
    if first_held_up is not None:
        console.print(bottleneck_line(recipe, shape, *first_held_up), soft_wrap=True)


def duration(hours: float) -> str:
    """Return a duration in hours, or in minutes if it is shorter than two hours."""
    if hours < 2:
        return f"{max(60 * hours, 1):.0f} min"
    return f"{rounded(hours, 1)} h"


def rounded(value: float, decimals: int) -> str:
    """Return `value` with `decimals` decimals, from 100 on with one, from 1,000 on with none."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.{decimals}f}"


def cost_assumptions(recipe: Recipe, shape: Shape) -> str:
    """Return the assumptions behind the cost of a step, as text."""
    image_tokens, text_tokens = record_tokens(recipe, shape)
    budget = recipe.optim.token_budget
    if budget == "auto":
        budget = ROW_TOKENS
    writing = "" if recipe.method.model == "scalar" else "; what is written comes on top"
    records = (
        f"records of an image of {image_tokens:,} tokens, {text_tokens:,} of text, and no video"
    )
    if planned_tokens(recipe.data) is not None:
        records = (
            f"records of {image_tokens:,} tokens of images and videos, and {text_tokens:,} of text, "
            "the means of the data card"
        )
    return (
        f"\nA step on GPUs, without evaluations{writing}. Assumed: {records}; every pair with a prompt of its own, for "
        "how many share one is known once the data are read; rows of "
        f"{budget:,} tokens; {MFU:.0%} of {PEAK / 1e12:.0f} TFLOP/s, the dense bf16 rate of an H100 "
        "and of an H200 (on a GPU with a quarter of that rate, computation takes four times as "
        f"long); a GPU gets {INSIDE / 1e9:.0f} GB/s in a node of {NODE} and {BETWEEN / 1e9:.0f} GB/s between "
        "nodes; transfers overlap with computation, so that a step takes the longer of the two. "
        "Received in a step: GB (seconds)."
    )


def bottleneck_line(recipe: Recipe, shape: Shape, ranks: int, cost: StepCost) -> str:
    """Return a warning that the network limits the speed on `ranks` GPUs, and what can be changed."""
    waiting = cost.waiting[recipe.deepspeed]
    ways_out = ["fewer GPUs", "a larger optim.records_per_step"]
    for name in COMPARED:
        if cost.waiting[name] < 0.95 * waiting:
            memory = per_rank(recipe, shape, name, ranks)
            seconds = f"{cost.waiting[name]:.2f} s"
            ways_out.append(f"deepspeed={name}, {seconds} and {memory.device / GIB:.0f} GiB a GPU")
    return (
        f"From {ranks:,} GPUs on the network is the bottleneck: {waiting:.2f} s for "
        f"{cost.compute:.2f} s of computation. Ways out: {', '.join(ways_out)}."
    )


def writing_line(recipe: Recipe, shape: Shape, all_ranks: list[int]) -> str:
    """Return a text on the cost of writing texts while weights are divided over the ranks.

    The text is empty if the weights are not divided, or the run writes no texts.
    """
    texts = recipe.method.written_texts(recipe)
    if not texts or stage(recipe.deepspeed) < 3:
        return ""
    price = writing_price(recipe, shape)
    received = ", ".join(
        f"{price.step * (ranks - 1) / ranks / GIB:.2f} on {ranks} ranks" for ranks in all_ranks
    )
    return (
        f"\nWriting ({', '.join(texts)}): all weights, {price.whole / GIB:.2f} GiB, are gathered "
        f"once each time where every rank then has {price.free / GIB:.2f} GiB free; else every layer "
        "is gathered for each step, which writes one token of all continuations in a row, and each "
        f"rank receives GiB a step: {received}."
    )


def plan_lines(recipe: Recipe) -> dict[str, list[str]]:
    """Return the lines of the plan of a recipe by their topic, such as "backbone"."""
    shape = shape_of(recipe.backbone.path)
    num_records, origin = epoch_records(recipe.data)
    method = [recipe.method.summary]
    if recipe.has_head:
        method.append(head_line(recipe, shape))
    data = [source_line(source) for source in recipe.data.sources]
    data += decision_lines(recipe)
    data.append(f"an epoch has {number(num_records)} records ({origin})")
    deepspeed = [deepspeed_line(recipe.deepspeed)]
    if not sums_in_fp32(recipe.deepspeed) and recipe.backbone.dtype != "float32":
        deepspeed.append(SUMMED_IN_BF16)
    missing = [
        f"{path} ({key}); a start needs it, from an earlier run or a download"
        for key, path in absent(recipe)
    ]
    return {
        "backbone": backbone_lines(recipe, shape),
        "method": method,
        "data": data,
        "steps": step_lines(recipe, num_records),
        "optimisation": optimisation_lines(recipe, shape),
        "deepspeed": deepspeed,
        "evaluation": evaluation_lines(recipe),
        "output": output_lines(recipe, shape),
        "missing": missing,
    }


def decision_lines(recipe: Recipe) -> list[str]:
    """Return the line on decisions about labels; none if the recipe has none.

    A file that an earlier command will write is in the list of missing files.
    """
    files = [path for path in recipe.data.decisions if exists("data.decisions", path)]
    if not files:
        return []
    decisions = read_decisions(files)
    counts = decision_counts_in_words(decisions.counts)
    return [
        f"decisions about labels of {len(decisions.by_key):,} records: {counts}; those in no source "
        "are counted at the start"
    ]


def backbone_lines(recipe: Recipe, shape: Shape | None) -> list[str]:
    """Return the lines on the backbone: checkpoint, image size, size, what is trained."""
    backbone = recipe.backbone
    tokens = "an unknown number of tokens"
    if shape is not None:
        image_tokens = shape.image_tokens(backbone)
        fewest, most = image_tokens.bounds
        tokens = f"{image_tokens.description}{fewest:,} to {most:,} tokens"
    lines = [
        f"{backbone.path} in {backbone.dtype}, attention {backbone.attention}",
        *name_lines(backbone.path, shape),
        f"images of {backbone.min_pixels:,} to {backbone.max_pixels:,} pixels: {tokens} each",
    ]
    lines.append(video_line(recipe, shape))
    if shape is not None:
        num_parameters, num_trained = trained(recipe, shape)
        lines.append(
            f"{in_millions(num_parameters)} parameters, {in_millions(num_trained)} of them trained"
        )
        num_idle = shape.count().idle_experts
        if num_idle:
            lines.append(
                f"a token is computed by {in_millions(num_parameters - num_idle)} of them; memory and "
                "network carry all experts"
            )
    lora = recipe.optim.lora
    if lora is not None:
        adapted = "the language model and its experts" if lora.experts else "the language model"
        lines.append(f"LoRA of rank {lora.rank} on {adapted}, quantisation {lora.quantise}")
    if backbone.freeze:
        lines.append(f"frozen: {', '.join(backbone.freeze)}")
    return lines


def video_line(recipe: Recipe, shape: Shape | None) -> str:
    """Return the line on videos: the frames that are sampled, their form and their tokens."""
    videos = recipe.backbone.videos
    form = "video tokens" if videos.form == "video" else "an image for each frame"
    line = f"videos: {videos.in_words}, as {form}"
    if shape is None:
        return f"{line}, an unknown number of tokens each"
    family = family_of_shape(shape)
    if videos.form == "video" and family.videos is None:
        return (
            f"videos: none, because {family.title} has no tokens of videos here; "
            "backbone.videos.form=frames shows them as images of frames"
        )
    most_tokens = shape.image_tokens(recipe.backbone).most_of_video
    return f"{line}, at most about {most_tokens:,} tokens each"


def name_lines(name: str, shape: Shape | None) -> list[str]:
    """Return a line for a hub id that is not known here, and none for any other backbone."""
    if shape is not None:
        return []
    line = "not checked: this hub id is not known here, and its config.json is read at the start"
    similar = similar_hub_id(name)
    if similar is not None:
        line += f". Did you mean {similar}?"
    return [line]


def in_millions(count: int) -> str:
    """Return a number of parameters in millions (M) or billions (B)."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} B"
    return f"{count / 1e6:.2f} M"


def head_line(recipe: Recipe, shape: Shape | None) -> str:
    """Return a description of the reward head."""
    head = recipe.head
    layers = "1 linear layer"
    if head.layers > 1:
        layers = f"{head.layers} linear layers with {head.activation} between"
    width = "of the backbone"
    if isinstance(head.width, list):
        width = " and ".join(map(str, head.width))
    elif head.width:
        width = str(head.width)
    elif shape is not None:
        width = str(shape.hidden_size)
    return (
        f"reward head: {layers}, width {width}, dropout {head.dropout:g}, read at {head.read}; "
        f"it computes {head.summary}"
    )


def step_lines(recipe: Recipe, num_records: int | None) -> list[str]:
    """Return the lines on the optimizer steps: their size, their number and the records of all.

    Args:
        recipe: The recipe.
        num_records: The records of an epoch, None if they are not known yet.
    """
    optim = recipe.optim
    records_per_step = optim.records_per_step
    budget = "the largest that fits"
    if optim.token_budget != "auto":
        budget = f"{optim.token_budget:,} tokens"
    steps = known_steps(recipe)
    if steps is None:
        length = f"{optim.epochs:g} epochs; steps {UNKNOWN}"
    elif not num_records:
        length = f"{steps:,} steps: {steps * records_per_step:,} records"
    else:
        # A record that is learned in both orders of its responses is counted twice.
        num_examples = num_records * recipe.method.examples_per_record
        # The last step of an epoch takes the records that are left.
        steps_per_epoch = ceil(num_examples / records_per_step)
        whole_epochs, further_steps = divmod(steps, steps_per_epoch)
        seen = whole_epochs * num_examples + min(further_steps * records_per_step, num_examples)
        length = f"{steps:,} steps: {seen:,} records, {seen / num_examples:.2f} epochs"
        if num_examples != num_records:
            length += ", each record in both orders and counted twice"
    planned = planned_tokens(recipe.data)
    tokens = f"tokens {UNKNOWN}"
    if planned is not None:
        tokens_per_record = planned.images + planned.text
        tokens = f"about {tokens_per_record:,.0f} tokens a record, by the data card"
    return [
        f"{records_per_step:,} records a step, packed into rows of {budget}",
        length,
        tokens,
    ]


def optimisation_lines(recipe: Recipe, shape: Shape | None) -> list[str]:
    """Return the lines on learning rates, schedule and the other numbers of the optimizer."""
    optim = recipe.optim
    rates = f"learning rate {optim.learning_rate:g}"
    if optim.head_learning_rate is not None:
        rates += f", head {optim.head_learning_rate:g}"
    if optim.vision_learning_rate is not None:
        rates += f", vision {optim.vision_learning_rate:g}"
    if optim.lora is not None and optim.learning_rate < LOWEST_LORA_RATE:
        rates += (
            f". A rate of {optim.learning_rate:g} suits the training of all weights; LoRA usually "
            "needs about ten times as much (arXiv 2405.09673): 1e-4 is a start"
        )
    divided = []
    ranks_of_row = optim.sequence_parallel
    if shape is not None and not shape.divides_over(ranks_of_row):
        divided.append(
            f"optim.sequence_parallel={ranks_of_row} cannot be used: the backbone has "
            f"{shape.num_attention_heads} attention heads, which have to be divisible, and may have "
            "no recurrent layers"
        )
    elif ranks_of_row > 1:
        divided.append(f"{ranks_of_row} ranks compute a row together, each a part of its tokens")
    balancing = []
    if optim.router_aux_loss_coef is None:
        balancing.append("load-balancing loss times the router_aux_loss_coef of config.json")
    elif optim.router_aux_loss_coef:
        balancing.append(f"load-balancing loss times {optim.router_aux_loss_coef:g}")
    return [
        f"{optim.optimizer}: {rates}",
        f"schedule {optim.schedule}, warm-up over {optim.warmup_ratio:.0%} of the steps",
        f"betas {optim.betas[0]:g} and {optim.betas[1]:g}, weight decay {optim.weight_decay:g}",
        f"gradient norm clipped to {optim.max_grad_norm:g}",
        f"activation checkpointing {optim.activation_checkpointing}",
        *divided,
        *balancing,
    ]


def deepspeed_line(name: str) -> str:
    """Return the DeepSpeed configuration and what it divides over the ranks."""
    if name == NONE:
        return "none: every rank holds everything"
    divided_by_stage = (
        "nothing",
        "optimizer states",
        "optimizer states and gradients",
        "optimizer states, gradients and weights",
    )
    line = f"{name}: ZeRO-{stage(name)} divides {divided_by_stage[stage(name)]}"
    is_optimizer_on_host, are_weights_on_host = offloads(name)
    on_host = []
    if is_optimizer_on_host:
        on_host.append("optimizer states")
    if are_weights_on_host:
        on_host.append("weights")
    if on_host:
        line += f"; {' and '.join(on_host)} in host memory"
    return line


def evaluation_lines(recipe: Recipe) -> list[str]:
    """Return the lines on the evaluations: of what, when, and what chooses the best checkpoint."""
    if not recipe.evaluates:
        return ["none"]
    evaluation = recipe.evaluation
    lines = [f"questions: {source_line(source)}" for source in evaluation.questions]
    lines += [benchmark_line(benchmark) for benchmark in evaluation.benchmarks]
    if recipe.data.validation:
        figures = [name for name in recipe.held_out_figures if name.startswith(f"{HELD_OUT}/")]
        lines.append(
            f"{recipe.data.validation:,} records withheld from training: {' and '.join(figures)}"
        )

    start = ", and before the first step" if evaluation.at_start else ""
    best = "no best checkpoint is kept"
    if evaluation.best_metric is not None:
        best = f"best checkpoint by {evaluation.best_metric}"
    if recipe.method.evaluated_on == "questions":
        how = f"a greedy answer and {evaluation.samples} sampled ones to each question"
    else:
        is_joint = recipe.method.joint_responses(recipe) is not None
        scores_single_responses = recipe.has_head or recipe.method.point_prompt is not None
        protocol = evaluation.protocol.in_words(
            "all rows", pairwise=not scores_single_responses, joint=is_joint
        )
        how = f"protocol: {protocol}"
        if evaluation.baselines:
            best += "; content-blind baselines beside"
    return [*lines, f"at every save{start}; {how}", best]


def benchmark_line(benchmark: BenchmarkConfig) -> str:
    """Return a benchmark, its location and its size."""
    line = f"{benchmark.name} ({benchmark.location}"
    editions = BENCHMARKS[benchmark.name].known
    if benchmark.location == "hub" and editions:
        line += f", {editions[-1].rows:,} rows stated"
    if benchmark.limit is not None:
        line += f", limited to {benchmark.limit:,}"
    return f"{line})"


def output_lines(recipe: Recipe, shape: Shape | None) -> list[str]:
    """Return the lines on the run folder and its checkpoints."""
    output = recipe.output
    exists = " (exists)" if Path(output.folder).exists() else ""
    checkpoints = (
        f"a checkpoint every {output.save_every_steps:,} steps, the newest "
        f"{output.keep_checkpoints} are kept"
    )
    if shape is not None:
        checkpoints += f", about {checkpoint_bytes(recipe, shape) / GIB:,.2f} GiB each"
    lines = [f"{output.folder}{exists}, resume {output.resume}", checkpoints]
    if output.staging is not None:
        lines.append(f"a checkpoint is first written into {output.staging} of every node")
    if output.push_to_hub:
        lines.append(f"the best one goes to {output.push_to_hub}")
    return lines


def number(value: int | None) -> str:
    """Return a count as text with separators of thousands."""
    return "an unknown number of" if value is None else f"{value:,}"


def source_line(source: SourceConfig) -> str:
    """Return a source, its location and its size."""
    name = source.label
    if source.label != source.type:
        name += f" ({source.type})"
    if source.location is not None:
        name += f" from {source.location}"
    rows, origin = source.expected_rows()
    return f"{name}: {number(rows)} rows ({origin})"
