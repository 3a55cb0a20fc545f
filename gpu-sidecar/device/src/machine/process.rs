//! Processes: admission, memory, suspension, abort and dismissal.

use super::{Machine, MachineError, ProcessSettings, SuspendError};
use crate::ledger::{Job, ProcessId};
use crate::memory::MemoryError;
use crate::part::sms_of_percentage;

/// State of a process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) unit: u32,
    /// Slots of the process's streams.
    pub(super) streams: Vec<u32>,
    pub(super) is_suspended: bool,
    is_mps_client: bool,
}

impl Machine {
    /// Creates a process with a context on a GPU or slice.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if the unit does not exist, has too many MPS clients or no room for the context.
    pub fn admit(
        &mut self,
        unit: u32,
        settings: &ProcessSettings,
    ) -> Result<ProcessId, MachineError> {
        let process = ProcessId(self.next_process);
        let device = self
            .units
            .get_mut(unit as usize)
            .ok_or(MachineError::NoUnit(unit))?;
        let is_mps_client = settings.mps.is_some();
        if is_mps_client && device.mps_clients >= device.info.mps_clients_max {
            return Err(MachineError::TooManyClients {
                clients: device.mps_clients,
            });
        }
        let residue = if settings.without_context {
            0
        } else {
            device.residue
        };
        device
            .memory
            .admit(self.now, process, residue, settings.memory_limit)?;
        let percentage = settings
            .active_thread_percentage_hundredths
            .filter(|_| is_mps_client);
        let all = device.info.sms;
        let sms = percentage.map_or(all, |percent| {
            sms_of_percentage(all, device.sm_unit, percent)
        });
        device.compute.admit(process, sms, settings.mps);
        device.mps_clients += u32::from(is_mps_client);
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

    /// Returns the SMs that a process may use at once, its percentage rounded to whole units; `None` if the process does not
    /// exist.
    #[must_use]
    pub fn sms_of(&self, process: ProcessId) -> Option<u32> {
        let unit = self.processes.get(&process)?.unit;
        self.units[unit as usize].compute.limit(process)
    }

    /// Drops all queued and running work of a process, as after a sticky error of its context. Dropped commands are not reported
    /// as completed, and streams that wait for the process's events continue. Its streams and memory remain.
    pub fn abort(&mut self, process: ProcessId) {
        let Some(of) = self.processes.get_mut(&process) else {
            return;
        };
        let unit = of.unit;
        let slots = std::mem::take(&mut of.streams);
        let device = &mut self.units[unit as usize];
        device.drop_waiting(|job| job.process == process);
        device
            .compute
            .advance(self.now, &mut self.ended, &mut self.ledger);
        device.compute.stop(process, &mut self.ledger);
        self.unit_changes(unit);
        // Copies in progress release their engines; waiting ones held none.
        let mut dropped: Vec<Job> = Vec::new();
        self.setups.retain(|(_, job), _| {
            let is_dropped = job.process == process;
            dropped.extend(is_dropped.then_some(*job));
            !is_dropped
        });
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
        for &slot in &slots {
            if let Some(stream) = self.streams.get_mut(slot) {
                let of_records = stream.waiting.drain(..);
                records.extend(of_records.filter_map(|command| command.own_record()));
                stream.drop_all();
            }
        }
        if let Some(of) = self.processes.get_mut(&process) {
            of.streams = slots.clone();
        }
        for record in records {
            self.complete_record(record);
        }
        for slot in slots {
            self.remove_if_finished(slot);
        }
        self.share();
    }

    /// Removes a process: drops its work and frees its memory.
    pub fn dismiss(&mut self, process: ProcessId) {
        self.abort(process);
        let Some(of) = self.processes.remove(&process) else {
            return;
        };
        for slot in of.streams {
            if let Some(stream) = self.streams.remove(slot) {
                self.stream_slots.remove(&stream.id);
            }
        }
        let device = &mut self.units[of.unit as usize];
        device.compute.dismiss(process, &mut self.ledger);
        device.memory.dismiss(self.now, process, &mut self.ledger);
        device.mps_clients -= u32::from(of.is_mps_client);
    }

    /// Allocates device memory for a process.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no room, or the process is suspended or does not exist.
    pub fn allocate(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let unit = self.unit_of(process)?;
        self.units[unit]
            .memory
            .allocate(self.now, process, bytes, &mut self.ledger)
    }

    /// Frees device memory of a process.
    ///
    /// # Errors
    ///
    /// Returns an error if the process holds less, is suspended or does not exist.
    pub fn free(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let unit = self.unit_of(process)?;
        self.units[unit]
            .memory
            .release(self.now, process, bytes, &mut self.ledger)
    }

    /// Suspends a process: moves all its memory off the device, its context's residue included, and runs none of its commands
    /// until it is resumed. Returns the bytes that it has allocated.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if the process has commands in progress, is already suspended or does not exist.
    pub fn suspend(&mut self, process: ProcessId) -> Result<u64, SuspendError> {
        let of = self.processes.get_mut(&process);
        let of = of.ok_or(SuspendError::NoProcess(process))?;
        if of.is_suspended {
            return Err(SuspendError::Suspended(process));
        }
        let at_work = |slot: &&u32| {
            let stream = self.streams.get(**slot);
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
        for &slot in &of.streams {
            if let Some(stream) = self.streams.get_mut(slot) {
                stream.is_suspended = true;
            }
        }
        self.unqueue(process);
        Ok(allocated)
    }

    /// Resumes a suspended process: moves its memory back to the device and runs its commands. Does nothing if the process is not
    /// suspended.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if there is no room or the process does not exist.
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
            let Some(&slot) = self
                .processes
                .get(&process)
                .and_then(|of| of.streams.get(at))
            else {
                break;
            };
            if let Some(stream) = self.streams.get_mut(slot) {
                stream.is_suspended = false;
            }
            self.queue_head(slot);
        }
        Ok(())
    }

    fn unit_of(&self, process: ProcessId) -> Result<usize, MemoryError> {
        match self.processes.get(&process) {
            Some(process) => Ok(process.unit as usize),
            None => Err(MemoryError::NotHeld { held: 0 }),
        }
    }

    /// Removes a process's streams from those whose first command may start.
    fn unqueue(&mut self, process: ProcessId) {
        let streams = &mut self.streams;
        self.heads.remove(|slot| {
            let stream = streams.get_mut(slot);
            let its = stream.filter(|stream| stream.process == process);
            its.map(|stream| stream.is_queued = false).is_some()
        });
    }
}
