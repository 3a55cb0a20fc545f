//! Checkpoints: locking a process, moving its device memory to the host's account, and the way back.

use device::machine::SuspendError;
use device::op::{CopyKind, Op};
use device::{Span, Time};
use rustix::thread::futex;
use softgpu_wire::clock;
use softgpu_wire::message::{CheckpointStep, Kind, Message};

use crate::client::ClientId;
use crate::server::{Running, RunningKind, Server};

/// `CUDA_ERROR_ILLEGAL_STATE`: the step does not follow from the state.
const ILLEGAL_STATE: u32 = 401;
/// `CUDA_ERROR_NOT_READY`: a step is in progress, or a lock timed out.
const NOT_READY: u32 = 600;
/// `CUDA_ERROR_INVALID_VALUE`: the process is unknown, or the requester itself.
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`: the device has no room to restore the memory.
const OUT_OF_MEMORY: u32 = 2;

/// State of a process, numbered as `CUprocessState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Running = 0,
    Locked = 1,
    Checkpointed = 2,
}

/// A checkpoint step in progress and the client to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) requester: ClientId,
    pub(crate) target: ClientId,
    step: CheckpointStep,
    /// Deadline after which the step is abandoned.
    until: Time,
    /// Number of copies in flight.
    copies: u32,
    has_begun: bool,
}

impl Server {
    /// Begins a step; returns the answer if it is known at once, `None` if it follows later.
    pub(crate) fn checkpoint(
        &mut self,
        requester: ClientId,
        pid: u32,
        step: CheckpointStep,
        timeout_ms: u64,
    ) -> Option<Message> {
        let refuse = |error| Some(Message::refusal(Kind::Checkpoint, error));
        let target = self
            .clients
            .iter()
            .find(|(_, client)| client.pid == pid && client.rings.is_some())
            .map(|(id, client)| (*id, client.checkpoint));
        let Some((target, state)) = target else {
            return refuse(INVALID_VALUE);
        };
        // A process that locked itself could not call again to unlock.
        let own = self.clients.get(&requester).map(|client| client.pid);
        if own == Some(pid) && step != CheckpointStep::State {
            return refuse(INVALID_VALUE);
        }
        if self
            .checkpoints
            .iter()
            .any(|pending| pending.target == target)
        {
            return refuse(NOT_READY);
        }
        match (step, state) {
            (CheckpointStep::State, _) => {
                return Some(Message::new(Kind::Checkpoint, &[state as u64]));
            }
            (CheckpointStep::Lock, State::Running) => self.set_locked(target, true),
            (CheckpointStep::Unlock, State::Locked) => {
                self.set_locked(target, false);
                self.set_state(target, State::Running);
                return Some(Message::new(Kind::Checkpoint, &[State::Running as u64]));
            }
            (CheckpointStep::Checkpoint, State::Locked)
            | (CheckpointStep::Restore, State::Checkpointed) => {}
            _ => return refuse(ILLEGAL_STATE),
        }
        let timeout = match (step, timeout_ms) {
            (CheckpointStep::Lock, ms) if ms > 0 => Span::from_millis(ms),
            _ => Span(u64::MAX),
        };
        self.checkpoints.push(Pending {
            requester,
            target,
            step,
            until: clock::now().after(timeout),
            copies: 0,
            has_begun: false,
        });
        None
    }

    fn set_state(&mut self, target: ClientId, state: State) {
        if let Some(client) = self.clients.get_mut(&target) {
            client.checkpoint = state;
        }
    }

    fn set_locked(&mut self, target: ClientId, locked: bool) {
        if let Ok(rings) = self.rings(target) {
            let word = rings.page.locked();
            word.store(u32::from(locked), std::sync::atomic::Ordering::Release);
            if !locked {
                let _woken = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
            }
        }
    }

    /// Counts a copy of a checkpoint as ended.
    pub(crate) fn checkpoint_copied(&mut self, target: ClientId) {
        for pending in self
            .checkpoints
            .iter_mut()
            .filter(|pending| pending.target == target)
        {
            pending.copies = pending.copies.saturating_sub(1);
        }
    }

    /// Ends all steps of or for a client that is gone, and unlocks the processes it was locking.
    pub(crate) fn end_checkpoints_of(&mut self, id: ClientId) {
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.checkpoints)
            .into_iter()
            .partition(|pending| pending.requester == id || pending.target == id);
        self.checkpoints = left;
        for pending in gone {
            if pending.step == CheckpointStep::Lock {
                self.set_locked(pending.target, false);
            }
        }
    }

    /// Advances all pending steps as far as possible, and answers the completed ones.
    pub(crate) fn drive_checkpoints(&mut self) {
        // Answering one step may remove a client, and with it other steps.
        for pending in self.checkpoints.clone() {
            let is_it = |other: &Pending| {
                other.requester == pending.requester && other.target == pending.target
            };
            let Some(at) = self.checkpoints.iter().position(is_it) else {
                continue;
            };
            match self.drive_checkpoint(at, pending) {
                None => {}
                Some(result) => {
                    self.checkpoints.retain(|other| !is_it(other));
                    let answer = match result {
                        Ok(state) => {
                            self.set_state(pending.target, state);
                            Message::new(Kind::Checkpoint, &[state as u64])
                        }
                        Err(error) => Message::refusal(Kind::Checkpoint, error),
                    };
                    self.answer(pending.requester, &answer);
                }
            }
        }
    }

    fn drive_checkpoint(&mut self, at: usize, pending: Pending) -> Option<Result<State, u32>> {
        let target = pending.target;
        match pending.step {
            CheckpointStep::Lock => {
                self.take(target);
                if self.rings(target).is_ok_and(|rings| rings.in_flight() == 0) {
                    return Some(Ok(State::Locked));
                }
                if clock::now() >= pending.until {
                    self.set_locked(target, false);
                    return Some(Err(NOT_READY));
                }
                None
            }
            CheckpointStep::Checkpoint => {
                if !pending.has_begun {
                    self.copy_all(at, target, CopyKind::DeviceToHost);
                    return None;
                }
                (pending.copies == 0).then(|| self.suspend(target))
            }
            CheckpointStep::Restore => {
                if !pending.has_begun {
                    if let Err(error) = self.resume(target) {
                        return Some(Err(error));
                    }
                    self.copy_all(at, target, CopyKind::HostToDevice);
                    return None;
                }
                (pending.copies == 0).then_some(Ok(State::Locked))
            }
            CheckpointStep::State | CheckpointStep::Unlock => Some(Err(ILLEGAL_STATE)),
        }
    }

    /// Submits copies of all memory of a process to the timeline.
    fn copy_all(&mut self, at: usize, target: ClientId, kind: CopyKind) {
        let now = clock::now();
        let Some(client) = self.clients.get(&target) else {
            return;
        };
        let processes: Vec<_> = client
            .processes
            .iter()
            .map(|(unit, process)| (*unit, process.id))
            .collect();
        let mut copies = 0;
        for (unit, process) in processes {
            let bytes = self
                .machine
                .memory(unit)
                .map_or(0, |memory| memory.allocated(process));
            if bytes == 0 {
                continue;
            }
            let stream = self.machine.stream(process);
            let Ok(command) = self.machine.submit(stream, now, Op::Copy { kind, bytes }) else {
                continue;
            };
            self.machine.destroy_stream(stream);
            let running = Running {
                client: target,
                context: u32::MAX,
                slot: 0,
                token: None,
                kind: RunningKind::Checkpoint,
            };
            self.running.insert(command, running);
            copies += 1;
        }
        if let Some(pending) = self.checkpoints.get_mut(at) {
            (pending.copies, pending.has_begun) = (copies, true);
        }
    }

    fn suspend(&mut self, target: ClientId) -> Result<State, u32> {
        let processes = self.processes_of(target);
        for (at, process) in processes.iter().enumerate() {
            match self.machine.suspend(*process) {
                Ok(_) | Err(SuspendError::Suspended(_)) => {}
                Err(_) => {
                    for back in &processes[..at] {
                        let _resumed = self.machine.resume(*back);
                    }
                    return Err(NOT_READY);
                }
            }
        }
        Ok(State::Checkpointed)
    }

    fn resume(&mut self, target: ClientId) -> Result<(), u32> {
        let processes = self.processes_of(target);
        for (at, process) in processes.iter().enumerate() {
            if self.machine.resume(*process).is_err() {
                for back in &processes[..at] {
                    let _suspended = self.machine.suspend(*back);
                }
                return Err(OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    fn processes_of(&self, target: ClientId) -> Vec<device::ledger::ProcessId> {
        let client = self.clients.get(&target);
        client.map_or_else(Vec::new, |client| {
            client
                .processes
                .values()
                .map(|process| process.id)
                .collect()
        })
    }
}
