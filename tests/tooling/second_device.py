"""A second device without a GPU: tensors that say they are on ``second:0`` while their numbers live on the CPU.

Importing this module registers the device for the whole process, so that only a process of its own should
(``test_second_device.py`` starts one). Mixing the device's tensors with the CPU's raises, as CUDA does; a CPU tensor without
dimensions may join in, and an index may stay on the CPU, as CUDA lets them. A :class:`SecondGenerator` belongs to the device: a
generator of the other side raises in ``torch.rand`` and its like.

Not there: autocast, data pointers and compiled code.
"""

from __future__ import annotations

import functools
import warnings

import safetensors.torch
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

warnings.filterwarnings("ignore", module="torch")
_setup_privateuseone_for_python_backend("second")
DEVICE = torch.device("second:0")
aten = torch.ops.aten
# what CUDA, too, lets have tensors of the CPU: an index, and the lengths of packed sequences
TAKES_BOTH = {"aten::index", "aten::_pack_padded_sequence", "aten::_pad_packed_sequence"}


class SecondTensor(torch.Tensor):
    """A tensor of the second device; ``raw`` is the CPU tensor with its numbers."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"second({self.raw!r})"

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        copied = SecondTensor(self.raw.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        return memo.setdefault(id(self), copied)

    def __format__(self, spec: str) -> str:
        return format(self.raw, spec)

    def tolist(self):
        return self.raw.tolist()

    def data_ptr(self):
        raise RuntimeError("the second device has no addresses: copy the tensor to the CPU first")

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert a tensor of the second device to numpy: copy it to the CPU first")


class SecondGenerator(torch.Generator):
    """A generator of random numbers that lives on the second device."""

    @property
    def device(self) -> torch.device:
        return DEVICE


def is_second(device: object) -> bool:
    return device is not None and torch.device(device).type == "second"


def raw(x: object) -> object:
    return x.raw if isinstance(x, SecondTensor) else x


def check_generator(generator: torch.Generator | None, there: bool) -> None:
    """Refuse a generator of the other device, as CUDA does."""
    if generator is not None and isinstance(generator, SecondGenerator) != there:
        wanted, found = ("second", "cpu") if there else ("cpu", "second")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")


def convert(func, args: tuple, kwargs: dict) -> torch.Tensor:
    """Move to the second device or from it, or change the dtype where a tensor is."""
    how = dict(kwargs)
    device = how.pop("device", None)
    there = is_second(device) if device is not None else isinstance(args[0], SecondTensor)
    out = func(raw(args[0]), **how)
    return SecondTensor(out) if there else out


def fused_lstm_cell(input_gates, hidden_gates, cell, input_bias=None, hidden_bias=None) -> tuple[torch.Tensor, ...]:
    """What a GPU does in one kernel, and the CPU has no operator for: one step of an LSTM, forward only."""
    gates = sum(x for x in (input_gates, hidden_gates, input_bias, hidden_bias) if x is not None)
    i, f, g, o = gates.chunk(4, dim=-1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def check_together(func, tensors: list[torch.Tensor]) -> list[SecondTensor]:
    """Return the second device's tensors; refuse to mix them with the CPU's."""
    second = [x for x in tensors if isinstance(x, SecondTensor)]
    cpu = [x for x in tensors if not isinstance(x, SecondTensor) and x.dim()]
    if second and cpu and func._schema.name not in TAKES_BOTH:
        raise RuntimeError(f"tensors on second and on cpu, {tuple(cpu[0].shape)}, in {func}")
    return second


def run(func, args: tuple, kwargs: dict):
    """Run an operator on the numbers, refuse to mix devices, and wrap what comes out."""
    if func is aten._to_copy.default:
        return convert(func, args, kwargs)
    if func in (aten.copy_.default, aten._copy_from.default):
        raw(args[0]).copy_(raw(args[1]))
        return args[0]
    if func is aten._local_scalar_dense.default:
        return args[0].raw.item()
    second = check_together(func, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)])
    device = kwargs.get("device")
    there = is_second(device) if device is not None else bool(second)
    how = kwargs | {"device": "cpu"} if is_second(device) else kwargs
    plain_args, plain_how = tree_map(raw, (args, how))
    kernel = fused_lstm_cell if func._schema.name == "aten::_thnn_fused_lstm_cell" else func
    out = kernel(*plain_args, **plain_how)
    returned = func._schema.returns
    if returned and returned[0].alias_info is not None and returned[0].alias_info.is_write:  # in place
        same = next((x for x in second if x.raw is out), args[0])
        return same if same is args[0] or same.shape == out.shape else SecondTensor(out)  # an `out` that has grown
    if func._schema.name in ("aten::_pack_padded_sequence", "aten::_pad_packed_sequence"):
        return SecondTensor(out[0]), out[1]  # the batch sizes, or the lengths, stay on the CPU
    return tree_map(lambda x: SecondTensor(x) if there and isinstance(x, torch.Tensor) else x, out)


_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda op, *args, **kwargs: run(op, args, kwargs), "PrivateUse1")


def _tensor_on_either_side(make):
    @functools.wraps(make)
    def tensor(data, *, device=None, **how):
        device = torch.get_default_device() if device is None else device
        if not is_second(device):
            return make(data, device=device, **how)
        with torch.device("cpu"):
            return make(data, device="cpu", **how).to("second")

    return tensor


def _with_its_own_generator(draw):
    @functools.wraps(draw)
    def checked(*args, generator=None, **how):
        place = next((x.device for x in args if isinstance(x, torch.Tensor)), how.get("device"))
        check_generator(generator, is_second(torch.get_default_device() if place is None else place))
        return draw(*args, generator=generator, **how)

    return checked


def _save_from_the_cpu(save_file):
    @functools.wraps(save_file)
    def save(tensors, *args, **how):
        return save_file({name: x.cpu() for name, x in tensors.items()}, *args, **how)

    return save


safetensors.torch.save_file = _save_from_the_cpu(safetensors.torch.save_file)  # for a GPU it does so by itself
torch.__future__.set_swap_module_params_on_conversion(True)  # `.to` keeps tied weights tied, as for a GPU
torch.tensor = _tensor_on_either_side(torch.tensor)
for _name in ("rand", "randn", "randint", "randperm", "multinomial"):
    setattr(torch, _name, _with_its_own_generator(getattr(torch, _name)))
