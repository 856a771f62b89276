"""The kinds of blindness a run can have: what each means, why it comes about, and the way out."""

from __future__ import annotations

from dataclasses import dataclass

from .._core._finding import Phase, Where


@dataclass(frozen=True, slots=True)
class Kind:
    """`message` is a sentence with places for `{n}` (a number), `{noun}`, `{were}`, `{their}` and the like."""

    message: str
    causes: tuple[str, ...]
    advice: tuple[str, ...]
    where: Where = "module"
    phase: Phase = "forward"


KINDS: dict[str, Kind] = {
    "untrained": Kind(
        "no step was recorded: no forward and backward of the watched model was seen",
        (
            "another object is trained: a copy of the model, or one made again after the watch began",
            "the model ran under torch.no_grad() only, or not at all",
        ),
        ("watch the very object that the loop calls, from before its first step", "hookscope run train.py finds the models by itself"),
        where="loop",
    ),
    "functional": Kind(
        "{n} {noun} {were} never called though {their} parameters get gradients: {their} outputs are not seen, {their} parameters are",
        (
            "the weight is used directly: F.linear(x, layer.weight), or as nn.MultiheadAttention does with its out_proj",
            "layer.forward(x) was called, which runs no hook, or a function around it is compiled by torch.compile",
        ),
        (
            "call the module, layer(x), instead of using its weight or its forward",
            "for out_proj of nn.MultiheadAttention there is nothing to do: what it computes is the attention's own output",
        ),
    ),
    "bypassed": Kind(
        "{n} {noun} {were} never called though modules inside ran: only those are seen, and the inputs of the forward are not read",
        ("model.forward(x) or another method, as model.encode(x), was called, which runs no hook", "the parts are called one by one"),
        ("call model(x); another method can be called from its forward",),
    ),
    "evaluated": Kind(
        "{n} {noun} ran in evaluation only: seen there, as output/eval, and never in the training",
        ("a branch for evaluation, as a head that only inference needs", "the training goes another way than it should"),
        ("nothing if that is meant; else look at `if self.training` in the forward",),
    ),
    "unused": Kind(
        "{n} {noun} with {elements:,} parameters {were} never called and got no gradient: nothing of {them} is trained",
        (
            "left over from another variant of the model",
            "a branch that was not taken: a layer dropped at random, an expert never chosen",
            "its output is computed without a graph, or does not reach the loss",
        ),
        (
            "use it in the forward, or remove it",
            "with DistributedDataParallel, give find_unused_parameters=True if it is used now and then",
        ),
    ),
    "frozen": Kind(
        "{n} {noun} with frozen parameters {were} never called: whether {their} weights are used otherwise cannot be told",
        ("not used", "its weight is used directly: without a gradient, that leaves no trace"),
        ("call the module, layer(x), instead of using its weight", "remove it if it is not used"),
    ),
    "unknown": Kind(
        "{n} {noun} {were} never called, and no gradient was recorded of {them} that could tell more",
        ("not used, or its function is called instead: F.relu(x), F.dropout(x)", "the training ended before it came to it"),
        ("call the module instead of its function, or remove it",),
    ),
    "compiled": Kind(
        "{n} {noun} {run} in a graph of torch.compile that does not read {them}: {their} activations are not seen, {their} parameters are",
        (
            "what they return is neither a tensor nor a tuple, list or dict of them, or they are called without gradients only",
            "the graph was compiled before the model was watched, in a compiled function that calls it",
        ),
        (
            "watch the model before its first compiled call",
            'look inside with torch.compiler.set_stance("force_eager"), or TORCH_COMPILE_DISABLE=1 in the environment, for some steps',
        ),
    ),
    "untapped_gradients": Kind(
        "the gradient at the output of {n} {noun} in a graph of torch.compile was not seen, the output was",
        ("that output is a view, and was written to in place after the module returned", "nothing of it reaches the loss"),
        ("write h = h + 1 instead of h += 1, or clone() the output before writing to it",),
        phase="backward",
    ),
    "untraced_outputs": Kind(
        "{n} {noun} in a graph of torch.compile {return} more than 8 tensors, or some on another device: those are not read",
        ("a long tuple of outputs, or a model on several devices",),
        ("nothing: the modules inside are seen, and so are the first 8 tensors",),
    ),
    "unhookable": Kind(
        "{n} scripted {noun} {take} no hooks: {their} activations are not seen, {their} parameters are",
        ("a torch.jit.ScriptModule runs without Python",),
        ("train the module as it was before torch.jit.script, and script it afterwards",),
    ),
    "skipped_transforms": Kind(
        "{n} {noun} ran inside a transform of torch.func, where nothing can be read",
        ("torch.vmap, torch.func.grad or another transform: the tensors inside stand for many",),
        ("give the model a batch instead of mapping it over samples", "the parameters are seen all the same, at the optimizer's step"),
    ),
    "lost_gradients": Kind(
        "the gradient at the output of {n} {noun} was lost: that output is a view, and was written to in place after the module returned",
        ("h = flatten(x); h += 1, or an in-place activation on a slice, chunk or reshape",),
        ("write h = h + 1, or clone() the output before writing to it",),
        phase="backward",
    ),
    "lost_calls": Kind(
        "{n} {noun} of modules beyond the 256th within one micro-batch left no rows",
        ("a module called once for each time step of a long sequence",),
        ("nothing: the first 256 calls stand for it, its parameters are seen whole",),
    ),
    "hidden_parameters": Kind(
        "the loss depends on {n} {noun} of no watched model",
        (
            "modules kept in a plain Python list or dict, which torch does not register: no optimizer gets them from model.parameters()",
            "another model that is not watched, or a bare nn.Parameter",
        ),
        ("keep modules in nn.ModuleList or nn.ModuleDict", 'watch all models: hs.watch({"a": a, "b": b})'),
    ),
    "other_threads": Kind(
        "{names}: what other threads trained while one thread was training is not seen",
        ("several trainings in threads of one process, as a search over hyperparameters with n_jobs > 1 runs them",),
        (
            "watch each training in its own thread: with hs.watch(model) in the function that the thread runs",
            "one process for each training",
        ),
        where="loop",
    ),
    "switched_off": Kind(
        "{names} switched off from step {step} on, after an error: {error}",
        ("an error inside hookscope, or a disk that takes no more",),
        ("make room where the run is written, or choose another place", "otherwise please report it, with the error"),
        where="loop",
    ),
    "frames_dropped": Kind(
        "{n} {noun} up to step {last} dropped {why}",
        ("a run in memory holds at most 256 MiB; a disk that is slower than the training gets what it can take",),
        ('record to a directory on a disk of this machine: to="runs/mine"', "record less: every=10, or a narrower select"),
        where="loop",
    ),
}
