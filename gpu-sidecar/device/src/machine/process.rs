//! Processes: they come, hold memory, are suspended, fail and go.

use super::{Machine, MachineError, ProcessSettings, SuspendError};
use crate::ledger::ProcessId;
use crate::memory::MemoryError;
use crate::part::sms_of_percentage;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) unit: u32,
    /// Its streams, by their places.
    pub(super) streams: Vec<u32>,
    pub(super) is_suspended: bool,
    is_mps_client: bool,
}

impl Machine {
    /// A process makes a context on a GPU or slice.
    ///
    /// # Errors
    /// There is no room for it: nothing has changed.
    pub fn admit(
        &mut self,
        unit: u32,
        settings: &ProcessSettings,
    ) -> Result<ProcessId, MachineError> {
        let process = ProcessId(self.next_process);
        let there = self
            .units
            .get_mut(unit as usize)
            .ok_or(MachineError::NoUnit(unit))?;
        let is_mps_client = settings.mps.is_some();
        if is_mps_client && there.mps_clients >= there.info.mps_clients_max {
            return Err(MachineError::TooManyClients {
                clients: there.mps_clients,
            });
        }
        let residue = if settings.without_context {
            0
        } else {
            there.residue
        };
        there
            .memory
            .admit(self.now, process, residue, settings.memory_limit)?;
        let percentage = settings
            .active_thread_percentage_hundredths
            .filter(|_| is_mps_client);
        let all = there.info.sms;
        let sms = percentage.map_or(all, |percent| {
            sms_of_percentage(all, there.sm_unit, percent)
        });
        there.compute.admit(process, sms, settings.mps);
        there.mps_clients += u32::from(is_mps_client);
        self.next_process += 1;
        self.processes.insert(
            process,
            Process {
                unit,
                streams: Vec::new(),
                is_suspended: false,
                is_mps_client,
            },
        );
        Ok(process)
    }

    /// SMs that a process may use at once, its percentage rounded to whole units; `None`: there is no such process.
    #[must_use]
    pub fn sms_of(&self, process: ProcessId) -> Option<u32> {
        let unit = self.processes.get(&process)?.unit;
        self.units[unit as usize].compute.limit(process)
    }

    /// All that a process has queued or running is dropped, as after an error that a context does not survive: nothing
    /// of it is told as done, and who waits for its events goes on. Its streams and its memory stay.
    pub fn abort(&mut self, process: ProcessId) {
        let Some(of) = self.processes.get_mut(&process) else {
            return;
        };
        let unit = of.unit;
        let places = std::mem::take(&mut of.streams);
        let there = &mut self.units[unit as usize];
        there.drop_waiting(|job| job.process == process);
        there
            .compute
            .advance(self.now, &mut self.ended, &mut self.ledger);
        there.compute.stop(process, &mut self.ledger);
        self.unit_changes(unit);
        // Copies that were under way hold their engines no more; those that waited held none.
        let mut dropped = Vec::new();
        self.network
            .advance(self.now, &mut self.ended, &mut self.ledger);
        self.network.stop(process, &mut dropped, &mut self.ledger);
        self.has_network_changed = true;
        for job in dropped {
            let stream = self.streams.get(job.tag);
            let current = stream.and_then(|stream| stream.current.as_ref());
            if let Some(direction) = current.and_then(|current| current.engine(job.work.node)) {
                self.free_engine(unit, direction);
            }
        }
        self.delays.retain(|delay| delay.0.1.process != process);
        self.hosts.retain(|_, job| job.process != process);
        let hosts = &self.hosts;
        self.host_turns
            .retain(|turn| hosts.contains_key(&turn.work));
        self.unqueue(process);
        let mut records = Vec::new();
        for &place in &places {
            if let Some(stream) = self.streams.get_mut(place) {
                let of_records = stream.waiting.drain(..);
                records.extend(of_records.filter_map(|command| command.own_record()));
                stream.drop_all();
            }
        }
        if let Some(of) = self.processes.get_mut(&process) {
            of.streams = places.clone();
        }
        for record in records {
            self.happen(record);
        }
        for place in places {
            self.remove_if_over(place);
        }
        self.share();
    }

    /// A process is gone: what it had submitted is dropped, what it held is free.
    pub fn dismiss(&mut self, process: ProcessId) {
        self.abort(process);
        let Some(of) = self.processes.remove(&process) else {
            return;
        };
        for place in of.streams {
            if let Some(stream) = self.streams.remove(place) {
                self.stream_places.remove(&stream.id);
            }
        }
        let there = &mut self.units[of.unit as usize];
        there.compute.dismiss(process, &mut self.ledger);
        there.memory.dismiss(self.now, process, &mut self.ledger);
        there.mps_clients -= u32::from(of.is_mps_client);
    }

    /// A process takes device memory.
    ///
    /// # Errors
    /// There is none for it, it is suspended, or there is no such process.
    pub fn allocate(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let unit = self.unit_of(process)?;
        self.units[unit]
            .memory
            .allocate(self.now, process, bytes, &mut self.ledger)
    }

    /// A process gives device memory back.
    ///
    /// # Errors
    /// It does not hold as much, it is suspended, or there is no such process.
    pub fn free(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let unit = self.unit_of(process)?;
        self.units[unit]
            .memory
            .release(self.now, process, bytes, &mut self.ledger)
    }

    /// All that a process holds, its context's residue included, leaves the device, and nothing of it runs until it is
    /// resumed: what is submitted waits. Returns the bytes it has allocated.
    ///
    /// # Errors
    /// Work of it is under way, it is suspended already, or there is no such process: nothing has changed.
    pub fn suspend(&mut self, process: ProcessId) -> Result<u64, SuspendError> {
        let of = self.processes.get_mut(&process);
        let of = of.ok_or(SuspendError::NoProcess(process))?;
        if of.is_suspended {
            return Err(SuspendError::Suspended(process));
        }
        let at_work = |place: &&u32| {
            let stream = self.streams.get(**place);
            stream.is_some_and(|stream| stream.current.is_some())
        };
        let streams = of.streams.iter().filter(at_work).count();
        if streams > 0 {
            return Err(SuspendError::Running { process, streams });
        }
        of.is_suspended = true;
        let memory = &mut self.units[of.unit as usize].memory;
        let left = memory.suspend(self.now, process, &mut self.ledger);
        let allocated = left.map_err(|_| SuspendError::Suspended(process))?;
        for &place in &of.streams {
            if let Some(stream) = self.streams.get_mut(place) {
                stream.is_suspended = true;
            }
        }
        self.unqueue(process);
        Ok(allocated)
    }

    /// What a suspended process holds comes back to the device, and what it has submitted runs. One that is not suspended
    /// stays as it is.
    ///
    /// # Errors
    /// There is no room for it, or no such process: nothing has changed.
    pub fn resume(&mut self, process: ProcessId) -> Result<(), MemoryError> {
        let unit = self.unit_of(process)?;
        self.units[unit]
            .memory
            .resume(self.now, process, &mut self.ledger)?;
        let Some(of) = self.processes.get_mut(&process) else {
            return Ok(());
        };
        of.is_suspended = false;
        for at in 0..of.streams.len() {
            let Some(&place) = self
                .processes
                .get(&process)
                .and_then(|of| of.streams.get(at))
            else {
                break;
            };
            if let Some(stream) = self.streams.get_mut(place) {
                stream.is_suspended = false;
            }
            self.queue_head(place);
        }
        Ok(())
    }

    fn unit_of(&self, process: ProcessId) -> Result<usize, MemoryError> {
        match self.processes.get(&process) {
            Some(process) => Ok(process.unit as usize),
            None => Err(MemoryError::NotHeld { held: 0 }),
        }
    }

    /// A process's streams are no more among those that may start.
    fn unqueue(&mut self, process: ProcessId) {
        let streams = &mut self.streams;
        self.heads.remove(|place| {
            let stream = streams.get_mut(place);
            let its = stream.filter(|stream| stream.process == process);
            its.map(|stream| stream.is_queued = false).is_some()
        });
    }
}
