"""The books of checkpoints: which was used last, and what they hold of the GPU, where they have their own budget."""

from __future__ import annotations

from engine.consistency.orders import LeastRecentlyUsed
from engine.consistency.pins import PinBooks
from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.index.node import Node
from engine.memory.holding import Holding, SlotCopy
from engine.memory.tiers import Tiers

CheckpointKey = tuple[Node[PrefixRecord], str]
"""The prefix it hangs on, and its id."""


class CheckpointBooks:
    """Hangs checkpoints on prefixes and takes them off. Guarded by the engine lock; the caller places the prefix."""

    def __init__(self, tiers: Tiers, pins: PinBooks) -> None:
        self.order: LeastRecentlyUsed[CheckpointKey] = LeastRecentlyUsed(_namespace_of)  # those with GPU bytes
        self.gpu_bytes = 0
        self._tiers = tiers
        self._pins = pins

    def add(self, node: Node[PrefixRecord], checkpoint: Checkpoint) -> None:
        """Hang a checkpoint on the prefix it follows, replacing an older one of the same tokens."""
        key = checkpoint.checkpoint_id
        if key in node.record.checkpoints:
            self.drop(node, key)
        node.record.checkpoints[key] = checkpoint
        self.gpu_bytes += checkpoint.gpu_bytes
        self.touch(node, key)
        if node.record.pinned_until_ns:
            self._pins.recount(node.record)  # the next checkpoint of the same commit must see it

    def touch(self, node: Node[PrefixRecord], checkpoint_id: str) -> None:
        """It was used: the youngest of those that have bytes on the GPU; without any it is not among them."""
        if node.record.checkpoints[checkpoint_id].gpu_bytes:
            self.order.touch((node, checkpoint_id))

    def arrived(self, copy: SlotCopy) -> None:
        """A block's bytes are back on the GPU."""
        self.gpu_bytes += copy.total_bytes

    def drop(self, node: Node[PrefixRecord], checkpoint_id: str) -> int:
        """Free a checkpoint's boundary objects in all tiers; bytes freed."""
        checkpoint = node.record.checkpoints.pop(checkpoint_id)
        self.order.discard((node, checkpoint_id))
        freed = 0
        for block in checkpoint.blocks.values():
            if block.gpu is not None:
                self.gpu_bytes -= block.gpu.total_bytes
            freed += self._tiers.drop_all(block)
        return freed

    def leave_gpu(self, node: Node[PrefixRecord], checkpoint_id: str) -> int:
        """Free the GPU copy of every block that has one below; bytes freed. One hung on a prefix while that was copied
        down has none yet, and stays."""
        blocks = node.record.checkpoints[checkpoint_id].blocks.values()
        return sum(self.block_leaves_gpu(node, checkpoint_id, block) for block in blocks if block.below)

    def block_leaves_gpu(self, node: Node[PrefixRecord], checkpoint_id: str, block: Holding) -> int:
        """Free a block's GPU copy: off the checkpoint budget, and with the last of them out of the order."""
        freed = self._tiers.drop_gpu(block)
        self.gpu_bytes -= freed
        if not node.record.checkpoints[checkpoint_id].gpu_bytes:
            self.order.discard((node, checkpoint_id))
        return freed


def _namespace_of(key: CheckpointKey) -> str:
    return key[0].record.namespace
