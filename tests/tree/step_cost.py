"""Counts what a decode step over trees launches: the step's own code over tensors that only pretend to be on a GPU.

Graph replays, SGLang's attention backend and the drafter's projections are stubs, since they are stock's own work;
kernels of the project are counted and not run. A step that waits for the device raises: the value of a fake tensor
cannot be read.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import torch
import triton
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

#: Operations that launch nothing: views, and memory from the caching allocator.
VIEWS = (
    "alias", "detach", "expand", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view", "_unsafe_view", "as_strided", "permute", "_reshape_alias",
)  # fmt: skip
ALLOCATIONS = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


class Counted(TorchDispatchMode):
    """Operations by kind (`launches`, `views`, `allocations`), and the names of what was launched."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter(launches=0, views=0, allocations=0)
        self.launched: list[str] = []
        #: What each kernel would have been compiled for.
        self.compiled: set[tuple] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        space, name = func._schema.name.split("::")
        if space != "prim":
            kind = "views" if name in VIEWS else "allocations" if name in ALLOCATIONS else "launches"
            self.counts[kind] += 1
            if kind == "launches":
                self.launched.append(name)
        return func(*args, **(kwargs or {}))

    def stub(self, name: str) -> None:
        """Count a launch of stock's."""
        self.counts["launches"] += 1
        self.launched.append(name)

    def kernel(self, function, *args, **kwargs) -> None:
        """Count a kernel of Triton's, in place of `JITFunction.run`."""
        self.stub(function.fn.__name__)
        given = dict(zip((p.name for p in function.params), args, strict=False)) | kwargs
        self.compiled.add((function.fn.__name__, *(_specialised(p, given[p.name]) for p in function.params)))


def _specialised(parameter, value):
    """What Triton compiles a kernel for, of one argument."""
    if parameter.is_constexpr or value is None:
        return value
    if isinstance(value, int):
        return "int" if parameter.do_not_specialize else (value == 1, value % 16 == 0)
    address = value.storage_offset() * value.element_size()
    return str(value.dtype), parameter.do_not_specialize_on_alignment or address % 16 == 0


class HostLengths:
    """Lengths on the host, whose sum is known there."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def sum(self) -> int:
        return sum(self.lengths)


def stub_worker(requests: int, width: int, block: int, hidden: int, vocab: int, pool, tier):
    """What a step asks of SGLang's worker."""
    table = torch.zeros(8, 512, dtype=torch.int32, device="cuda")
    embedding = torch.zeros(vocab, hidden, device="cuda")
    runner = SimpleNamespace(
        kv_index_translator=SimpleNamespace(plan=lambda **kw: SimpleNamespace(**kw, bind=lambda batch, reader: None)),
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        model=SimpleNamespace(get_input_embeddings=lambda: lambda ids: torch.nn.functional.embedding(ids, embedding)),
    )
    output = SimpleNamespace(
        next_token_logits=torch.zeros(requests * width, vocab, device="cuda"),
        hidden_states=torch.zeros(requests * width, hidden, device="cuda"),
    )
    verified = SimpleNamespace(
        logits_output=output, can_run_cuda_graph=True, routed_experts_output=None, indexer_topk_output=None
    )
    fed: list[dict] = []
    return SimpleNamespace(
        device="cpu",  # whose streams exist here
        block_size=block,
        _mask_token_id=1,
        _draft_block_spec_info=None,
        _draft_sampler=object(),
        draft_parallel_layout=SimpleNamespace(tp_group=None),
        _full_embed_gpu=None,
        _noise_embed_scale=1.0,
        _need_mamba_verify_commit=False,
        simulated_length=0,
        tree=SimpleNamespace(gated_delta=False),
        tiers=SimpleNamespace(of=lambda size: tier),
        model_runner=runner,
        target_worker=SimpleNamespace(model_runner=runner, forward_batch_generation=lambda **kw: verified),
        draft_model_runner=SimpleNamespace(
            kv_index_translator=None, forward=lambda batch: SimpleNamespace(can_run_graph=True, logits_output=None)
        ),
        _tp_sync=SimpleNamespace(sync=lambda site, tensor: None),
        _draft_write_ids=lambda plan: plan.write_virtual,
        _append_target_hidden_to_draft_kv_by_loc=lambda **kw: fed.append(kw),
        fed=fed,
    )


def pretend(monkeypatch) -> Counted:
    """Count from here on; kernels do not run."""
    counted = Counted()
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", lambda k, *args, **kw: counted.kernel(k, *args, **kw))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return counted


def stub_tier(requests: int, width: int, block: int):
    """Buffers of a width, and a worker that has no other."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from specpilot_sglang.kernels.gated_delta.tree_paths import TreePaths
    from specpilot_sglang.kernels.tree_build.launch import LinkedTrees
    from specpilot_sglang.tree.buffers import Room
    from specpilot_sglang.tree.tiers import Tier

    index = torch.arange(requests * width, device="cuda").view(requests, width)
    room = Room(TreePaths.empty(requests, width, block, "cuda"), index, block - 1)
    tier = Tier(width, block - 1, width, room, LinkedTrees.empty(requests, width, "cuda"))
    pool = MHATokenToKVPool.__new__(MHATokenToKVPool)
    pool._kv_copy_config, pool.use_native_move_kv_cache = {"byte_tiles": 1, "bytes_per_tile": 128}, False
    pool.data_ptrs = pool.data_strides = torch.zeros(4, dtype=torch.int64, device="cuda")
    return tier, stub_worker(requests, width, block, 16, 64, pool, tier)


def one_step(monkeypatch, requests: int, width: int, simulated: int = 0, block: int = 8) -> Counted:
    """Run one step of a greedy batch with FlashAttention-3 and count it, its attention metadata included."""
    import sglang.srt.lora.layers  # noqa: F401  needs real tensors when it is imported
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from specpilot_sglang.tree import draft, fa3, step

    counted = pretend(monkeypatch)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tier, worker = stub_tier(requests, width, block)
        worker.simulated_length = simulated
        backend = stub_backend(requests, width, counted)

        def prepare(verify_input, pool, batch, target):
            fa3.plan_suffixes(
                None, backend, bs=requests, plan=None, req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens, encoder_lens=None, forward_mode=ForwardMode.TARGET_VERIFY,
                spec_info=verify_input,
            )  # fmt: skip
            return SimpleNamespace(), True

        monkeypatch.setattr(step, "eagle_prepare_for_verify", prepare)
        monkeypatch.setattr(draft, "enable_num_token_non_padded", lambda: False)
        batch, published = stub_batch(requests), []
        tier.views(requests)  # made once, with the first batch of this size
        with counted:
            result = step.tree_step(worker, tier, batch, published.append, None)
    assert len(published) == len(worker.fed) == 1
    assert result.speculative_num_draft_tokens == width
    assert worker.fed[0]["cache_loc"].shape == worker.fed[0]["positions"].shape == (requests * block,)
    return counted


def stub_batch(requests: int):
    """A greedy decode batch whose lengths the host does not know."""
    return SimpleNamespace(
        seq_lens=torch.ones(requests, dtype=torch.int64, device="cuda"),
        req_pool_indices=torch.zeros(requests, dtype=torch.int64, device="cuda"),
        seq_lens_cpu=None,
        spec_info=SimpleNamespace(
            bonus_tokens=torch.zeros(requests, dtype=torch.int64, device="cuda"),
            nxt_kv_lens_cpu=HostLengths(*[9] * requests),
            nxt_kv_lens_sum=9 * requests,
        ),
        can_run_decode_cuda_graph=True,
        has_grammar=False,
        sampling_info=None,
        return_logprob=False,
    )


def stub_backend(requests: int, width: int, counted: Counted):
    """FlashAttention-3's buffers of a captured verify pass; its module needs a GPU's libraries to be imported."""

    def half(rows, columns):
        return SimpleNamespace(
            cache_seqlens_int32=torch.zeros(rows, dtype=torch.int32, device="cuda"),
            cu_seqlens_k=torch.zeros(rows + 1, dtype=torch.int32, device="cuda"),
            page_table=torch.zeros(rows, columns, dtype=torch.int32, device="cuda"),
        )

    return SimpleNamespace(
        has_swa=False,
        kv_index_translator=SimpleNamespace(reads_are_translated=False),
        req_to_token=torch.zeros(8, 512, dtype=torch.int32, device="cuda"),
        page_size=1,
        max_context_len=512,
        target_verify_metadata_topk_normal={requests: half(requests, 512)},
        target_verify_metadata_topk_expand={requests: half(requests * width, width)},
        # One launch in stock, which fills lengths, their sums and the page table.
        _set_decode_page_metadata=lambda *args: counted.stub("page_metadata"),
    )
