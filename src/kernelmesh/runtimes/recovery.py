"""What of a running agent survives: it is restored from its folder, and goes back to an earlier state if need be."""

import logging
from collections.abc import Callable
from dataclasses import replace

from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore
from kernelmesh.runtimes.node import Entry, Node, Recover, Stepped
from kernelmesh.streams import Batch, Source

__all__ = ["Recovery"]

_log = logging.getLogger("kernelmesh.agent")

_HELPED = 10_000  # samples without trouble after which going back to an earlier function has helped
_MOST_ATTEMPTS = 3  # to go on from earlier functions


class Recovery:
    """Keeps the state of a node in a store, which may be None: then nothing survives the process."""

    def __init__(self, node: Node, source: Source, store: CheckpointStore | None) -> None:
        self._node, self._source, self._store = node, source, store
        self.recoveries = 0
        """How often the agent has gone back to an earlier function."""
        self._attempts = self._went_back_to = 0
        self._recovered_at = -_HELPED
        self._save_due, self._save_again = False, 0.0

    @property
    def trouble(self) -> str:
        """Why the last write failed; empty if it succeeded."""
        return "" if self._store is None else self._store.trouble

    @property
    def newest(self) -> int | None:
        """The step of the latest checkpoint."""
        return None if self._store is None else self._store.newest

    # -- what is written -----------------------------------------------------------------------------------------------

    def record(self, stepped: Stepped, now: float) -> None:
        """Put the input of a step on record, and write a checkpoint if one is due."""
        store = self._store
        if store is None:
            return
        self._watch(lambda: store.append(stepped.entry))
        if self._save_due or stepped.entry.step % store.every == 0:
            self._save_due = False
            self.save(now)

    def retry(self, now: float) -> None:
        """Write a checkpoint if that has failed a while ago."""
        if self.trouble and now >= self._save_again and self._node.batch is None:
            self.save(now)

    def save(self, now: float, *, last: bool = False, again: bool = False) -> None:
        """Write a checkpoint, unless nothing has been learned since the last; the final one also stores pending samples."""
        store, node, source = self._store, self._node, self._source
        if store is None or (store.newest == node.state.steps and not store.trouble and not last and not again):
            return
        if node.is_doubtful and not last:  # good ones must not be pushed out by those of a function that is about to go
            return
        self._save_again = now + 5.0
        checkpoint = Checkpoint(
            state=node.state, position=source.position, pending=source.pending, traffic=node.traffic, excluded=node.excluded
        )
        self._watch(lambda: store.save(checkpoint))

    def close(self, now: float) -> None:
        """Write the last checkpoint."""
        try:
            if self._node.batch is not None:
                self._source.give_back()  # but not learned from: it will come again
            self.save(now, last=True)
        finally:
            self._source.close()
            if self._store is not None:
                self._store.close()

    def _watch(self, write: Callable[[], object]) -> None:
        """Write something, and log when that starts failing and when it works again."""
        before = self.trouble
        write()
        if self.trouble and not before:
            _log.error("cannot write checkpoints: %s; learning continues, retrying every 5 s", self.trouble)
        elif before and not self.trouble:
            _log.warning("checkpoints are being written again")

    # -- what is read --------------------------------------------------------------------------------------------------

    def go_back(self, wish: Recover, now: float) -> None:
        """Return to the last good checkpoint; if that does not help, to an older one, and finally to an empty model.

        The stream continues where it is, and steps and samples keep counting.
        """
        state = self._node.state
        if state.samples - self._recovered_at > _HELPED:
            self._attempts, self._went_back_to = 0, state.steps
        self._attempts += 1
        self._recovered_at = state.samples
        if self._attempts > _MOST_ATTEMPTS:
            if wish.error is not None:
                raise wish.error
            if self._attempts == _MOST_ATTEMPTS + 1:
                _log.error("%s, and going back to earlier functions did not help", wish.reason)
            return
        limit, member, found = min(wish.good, self._went_back_to - 1), self._node.membership, None
        if self._store is not None and self._attempts < _MOST_ATTEMPTS:
            found = self._store.good(limit, name=member.name)
        if found is None:
            good, where = self._node.agent.start(name=member.name, number=member.number or 0), "starting from scratch"
        else:
            good, where = found.state, f"going back to the checkpoint of step {found.state.steps}"
        self._went_back_to = good.steps
        _log.error("this agent's own function is absurd (%s): %s; the stream continues", wish.reason, where)
        self._node.recover(replace(good, samples=state.samples, steps=state.steps), now)
        self.recoveries += 1
        self._save_due = self._node.batch is not None  # which is not part of any checkpoint
        if not self._save_due:
            self.save(now, again=True)

    def restore(self, now: float) -> None:
        """Restore the agent from its folder, replaying the steps in the journal."""
        store, node = self._store, self._node
        if store is None:
            return
        checkpoint, entries = store.restore(name=node.membership.name)
        position, taken, pending = None, 0, None
        if checkpoint is not None:
            node.resume(checkpoint.state, checkpoint.traffic, checkpoint.excluded)
            position, pending = checkpoint.position, checkpoint.pending
        for entry in entries:
            if not self._replay(store, entry):
                break
            if entry.position is not None:  # else there were no samples
                position, taken = entry.position, taken + len(entry.batch.points)
        if checkpoint is None and not entries:
            self._watch(store.begin)
            return
        if pending is not None:
            pending = Batch(pending.points[taken:], pending.targets[taken:])
        if position is not None:
            self._source.seek(position, pending)
        text = "resuming from step %d (%d samples), %d steps from the journal"
        _log.info(text, node.state.steps, node.state.samples, len(entries))
        self.save(now)

    def _replay(self, store: CheckpointStore, entry: Entry) -> bool:
        """Replay a step; input that makes it fail is set aside, so that no restart fails again. False if skipped."""
        try:
            names = self._node.replay(entry)
        except Exception as error:
            store.set_aside(entry)
            _log.error("step %d is not replayed: %s", entry.step, error)
            return False
        if names:
            path = store.set_aside(entry)
            text = "step %d is replayed without the messages of %s, which are set aside in %s"
            _log.warning(text, entry.step, ", ".join(names), path)
        return True
