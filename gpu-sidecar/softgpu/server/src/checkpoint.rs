//! Checkpoints: a process is stopped, its device memory is counted as the host's, and all the way back.

use device::machine::SuspendError;
use device::op::{Op, Way};
use device::{Span, Time};
use rustix::thread::futex;
use softgpu_wire::clock;
use softgpu_wire::message::{CheckpointStep, Kind, Message};

use crate::client::ClientId;
use crate::server::{Running, RunningKind, Server};

/// `CUDA_ERROR_ILLEGAL_STATE`
const ILLEGAL_STATE: u32 = 401;
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: u32 = 600;
/// `CUDA_ERROR_INVALID_VALUE`
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: u32 = 2;

/// As the driver numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Running = 0,
    Locked = 1,
    Checkpointed = 2,
}

/// A step that is under way, and who waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) asker: ClientId,
    pub(crate) target: ClientId,
    step: CheckpointStep,
    /// When it is given up.
    until: Time,
    /// Copies that have not ended.
    copies: u32,
    has_begun: bool,
}

impl Server {
    /// Begins a step: an answer, where it can be given at once.
    pub(crate) fn checkpoint(
        &mut self,
        asker: ClientId,
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
        // A process that stops itself would never answer.
        let own = self.clients.get(&asker).map(|client| client.pid);
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
            asker,
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

    /// A copy of a checkpoint has ended.
    pub(crate) fn checkpoint_copied(&mut self, target: ClientId) {
        for pending in self
            .checkpoints
            .iter_mut()
            .filter(|pending| pending.target == target)
        {
            pending.copies = pending.copies.saturating_sub(1);
        }
    }

    /// A client is gone: whom it had stopped, and was about to, goes on.
    pub(crate) fn end_checkpoints_of(&mut self, id: ClientId) {
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.checkpoints)
            .into_iter()
            .partition(|pending| pending.asker == id || pending.target == id);
        self.checkpoints = left;
        for pending in gone {
            if pending.step == CheckpointStep::Lock {
                self.set_locked(pending.target, false);
            }
        }
    }

    /// Does what can be done of all steps.
    pub(crate) fn go_on_with_checkpoints(&mut self) {
        // Any of them may end another, with the client it was for.
        for pending in self.checkpoints.clone() {
            let is_it =
                |other: &Pending| other.asker == pending.asker && other.target == pending.target;
            let Some(at) = self.checkpoints.iter().position(is_it) else {
                continue;
            };
            match self.go_on_with(at, pending) {
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
                    self.answer(pending.asker, &answer);
                }
            }
        }
    }

    fn go_on_with(&mut self, at: usize, pending: Pending) -> Option<Result<State, u32>> {
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
                    self.copy_all(at, target, Way::DeviceToHost);
                    return None;
                }
                (pending.copies == 0).then(|| self.suspend(target))
            }
            CheckpointStep::Restore => {
                if !pending.has_begun {
                    if let Err(error) = self.resume(target) {
                        return Some(Err(error));
                    }
                    self.copy_all(at, target, Way::HostToDevice);
                    return None;
                }
                (pending.copies == 0).then_some(Ok(State::Locked))
            }
            CheckpointStep::State | CheckpointStep::Unlock => Some(Err(ILLEGAL_STATE)),
        }
    }

    /// Copies all memory of a process, on the timeline.
    fn copy_all(&mut self, at: usize, target: ClientId, way: Way) {
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
            let Ok(command) = self.machine.submit(stream, now, Op::Copy { way, bytes }) else {
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
