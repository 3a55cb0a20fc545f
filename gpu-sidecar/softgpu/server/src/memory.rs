//! Accounting of device memory. The bytes are in files that clients create and map; the server counts the holders of
//! each allocation, and keeps the files of offered memory open.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use device::ledger::ProcessId;
use device::machine::{MachineError, MpsServer, ProcessSettings};

use crate::client::{Client, ClientId, Process};
use crate::server::Server;
use crate::shared::new_key;

/// `CUDA_ERROR_OUT_OF_MEMORY`: the device or a limit of the server is exhausted.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_INVALID_VALUE`: a number, key or argument is invalid.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`: the GPU is lost, or has a broken context.
pub(crate) const UNAVAILABLE: u32 = 46;

/// Largest number of offers at once; each holds a file descriptor.
const OFFERS_MAX: usize = 16_384;

/// An allocation with all its holders.
#[derive(Debug)]
struct Stretch {
    unit: u32,
    bytes: u64,
    /// Client with the process to which the allocation is charged.
    charged: ClientId,
    /// Whether the allocation is charged; inheriting may have failed at the heir's limit.
    is_charged: bool,
    /// Clients that hold the allocation, once for each reference.
    holders: Vec<ClientId>,
    /// Device and inode of the file of the allocation, if other processes can import it.
    file: Option<(u64, u64)>,
}

/// A client's reference to an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    stretch: u64,
}

/// Memory offered to any holder of its key.
#[derive(Debug)]
struct Offer {
    stretch: u64,
    offset: u64,
    bytes: u64,
    file: OwnedFd,
}

/// All allocations and offers; see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    stretches: HashMap<u64, Stretch>,
    by_file: HashMap<(u64, u64), u64>,
    offers: HashMap<[u64; 2], Offer>,
    next: u64,
}

/// Answer to an accepted offer.
pub(crate) struct Accepted {
    pub(crate) number: u64,
    pub(crate) unit: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) file: OwnedFd,
}

impl Server {
    /// Returns the client's process on a unit, creating one without a context if there is none.
    pub(crate) fn process_on(&mut self, id: ClientId, unit: u32) -> Result<ProcessId, u32> {
        if self.is_lost(unit) {
            return Err(UNAVAILABLE);
        }
        let client = self.clients.get(&id).ok_or(INVALID_VALUE)?;
        if let Some(process) = client.processes.get(&unit) {
            return Ok(process.id);
        }
        let settings = ProcessSettings {
            without_context: true,
            ..ProcessSettings::default()
        };
        self.admit(id, unit, &settings, 0)
    }

    /// Admits a client's process to a unit.
    pub(crate) fn admit(
        &mut self,
        id: ClientId,
        unit: u32,
        settings: &ProcessSettings,
        contexts: u32,
    ) -> Result<ProcessId, u32> {
        let process = self
            .machine
            .admit(unit, settings)
            .map_err(|error| match error {
                MachineError::NoUnit(_) => 101,
                MachineError::TooManyClients { .. } => 808,
                _ => OUT_OF_MEMORY,
            })?;
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        let pid = client.pid;
        let own = Process {
            id: process,
            contexts,
            mps: settings.mps.map(|MpsServer(server)| server),
            percentage_hundredths: settings.active_thread_percentage_hundredths.unwrap_or(0),
        };
        client.processes.insert(unit, own);
        self.owners.insert(process, id);
        self.ledger
            .introduce(process.0, pid, unit, self.machine.now());
        Ok(process)
    }

    /// Allocates memory for a client; returns its number.
    pub(crate) fn allocate(
        &mut self,
        id: ClientId,
        unit: u32,
        bytes: u64,
        file: Option<(u64, u64)>,
    ) -> Result<u64, u32> {
        let process = self.process_on(id, unit)?;
        self.machine
            .allocate(process, bytes)
            .map_err(|_| OUT_OF_MEMORY)?;
        self.statistics.has_news = true;
        self.allocations.next += 1;
        let number = self.allocations.next;
        let stretch = Stretch {
            unit,
            bytes,
            charged: id,
            is_charged: true,
            holders: vec![id],
            file,
        };
        self.allocations.stretches.insert(number, stretch);
        if let Some(file) = file {
            self.allocations.by_file.insert(file, number);
        }
        self.hold(id, number)
    }

    fn hold(&mut self, id: ClientId, stretch: u64) -> Result<u64, u32> {
        self.allocations.next += 1;
        let number = self.allocations.next;
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        client.allocations.insert(number, Held { stretch });
        Ok(number)
    }

    /// Releases a client's reference.
    pub(crate) fn free(&mut self, id: ClientId, number: u64) -> Result<(), u32> {
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        let held = client.allocations.remove(&number).ok_or(INVALID_VALUE)?;
        self.release(id, held);
        Ok(())
    }

    fn release(&mut self, id: ClientId, held: Held) {
        self.statistics.has_news = true;
        let Some(stretch) = self.allocations.stretches.get_mut(&held.stretch) else {
            return;
        };
        if let Some(at) = stretch.holders.iter().position(|holder| *holder == id) {
            stretch.holders.swap_remove(at);
        }
        let (unit, bytes, charged) = (stretch.unit, stretch.bytes, stretch.charged);
        let is_charged = stretch.is_charged;
        let is_held = stretch.holders.contains(&charged);
        let heir = stretch.holders.first().copied();
        if is_held {
            return;
        }
        // The charged client no longer holds it: the next holder, if any, is charged from now on.
        let process = self
            .clients
            .get(&charged)
            .and_then(|client| client.processes.get(&unit));
        if let Some(process) = process.filter(|_| is_charged) {
            let _freed = self.machine.free(process.id, bytes);
        }
        let Some(heir) = heir else {
            self.forget(held.stretch);
            return;
        };
        self.inherit(held.stretch, heir, unit, bytes);
    }

    /// Charges an allocation to another holder. It was charged until now, so the unit has room, but the heir's limit
    /// may be exceeded; the heir then holds it uncharged.
    fn inherit(&mut self, number: u64, heir: ClientId, unit: u32, bytes: u64) {
        let moved = self.process_on(heir, unit).ok();
        let is_charged = moved.is_some_and(|process| self.machine.allocate(process, bytes).is_ok());
        if let Some(stretch) = self.allocations.stretches.get_mut(&number) {
            (stretch.charged, stretch.is_charged) = (heir, is_charged);
        }
    }

    /// Returns whether memory of a unit is charged to a client.
    pub(crate) fn holds_memory(&self, id: ClientId, unit: u32) -> bool {
        let mut stretches = self.allocations.stretches.values();
        stretches.any(|stretch| stretch.charged == id && stretch.unit == unit)
    }

    fn forget(&mut self, number: u64) {
        if let Some(stretch) = self.allocations.stretches.remove(&number)
            && let Some(file) = stretch.file
            && self.allocations.by_file.get(&file) == Some(&number)
        {
            self.allocations.by_file.remove(&file);
        }
        self.allocations
            .offers
            .retain(|_, offer| offer.stretch != number);
    }

    /// Drops the references of a client that is gone; its processes are already dismissed.
    pub(crate) fn forget_allocations(&mut self, client: &Client) {
        let gone: Vec<_> = client.allocations.values().copied().collect();
        let numbers: Vec<_> = gone.iter().map(|held| held.stretch).collect();
        // The client is no longer in `clients`, which identifies its entries among the holders.
        for number in numbers {
            let Some(stretch) = self.allocations.stretches.get_mut(&number) else {
                continue;
            };
            let there = &self.clients;
            stretch.holders.retain(|holder| there.contains_key(holder));
            if there.contains_key(&stretch.charged) {
                continue;
            }
            match stretch.holders.first().copied() {
                None => self.forget(number),
                Some(heir) => {
                    let (unit, bytes) = (stretch.unit, stretch.bytes);
                    self.inherit(number, heir, unit, bytes);
                }
            }
        }
    }

    /// Imports memory of another process by the device and inode of its file; returns its number in this client, unit
    /// and bytes.
    pub(crate) fn import(
        &mut self,
        id: ClientId,
        file: (u64, u64),
    ) -> Result<(u64, u32, u64), u32> {
        let number = *self.allocations.by_file.get(&file).ok_or(INVALID_VALUE)?;
        let stretch = self
            .allocations
            .stretches
            .get_mut(&number)
            .ok_or(INVALID_VALUE)?;
        stretch.holders.push(id);
        let (unit, bytes) = (stretch.unit, stretch.bytes);
        Ok((self.hold(id, number)?, unit, bytes))
    }

    /// Offers memory that a client holds; returns the key.
    pub(crate) fn offer(
        &mut self,
        id: ClientId,
        number: u64,
        offset: u64,
        bytes: u64,
        file: OwnedFd,
    ) -> Result<[u64; 2], u32> {
        let client = self.clients.get(&id).ok_or(INVALID_VALUE)?;
        let stretch = client
            .allocations
            .get(&number)
            .ok_or(INVALID_VALUE)?
            .stretch;
        let same = self
            .allocations
            .offers
            .iter()
            .find(|(_, offer)| offer.stretch == stretch && offer.offset == offset);
        if let Some((key, _)) = same {
            return Ok(*key);
        }
        if self.allocations.offers.len() >= OFFERS_MAX {
            return Err(OUT_OF_MEMORY);
        }
        let key = new_key();
        let offer = Offer {
            stretch,
            offset,
            bytes,
            file,
        };
        self.allocations.offers.insert(key, offer);
        Ok(key)
    }

    /// Opens offered memory for a client.
    pub(crate) fn accept_offer(&mut self, id: ClientId, key: [u64; 2]) -> Result<Accepted, u32> {
        let offer = self.allocations.offers.get(&key).ok_or(INVALID_VALUE)?;
        let (number, offset, bytes) = (offer.stretch, offer.offset, offer.bytes);
        let file = offer.file.try_clone().map_err(|_| 304_u32)?;
        let stretch = self
            .allocations
            .stretches
            .get_mut(&number)
            .ok_or(INVALID_VALUE)?;
        // As in the driver: a process cannot open its own memory.
        if stretch.charged == id {
            return Err(201);
        }
        stretch.holders.push(id);
        let unit = stretch.unit;
        Ok(Accepted {
            number: self.hold(id, number)?,
            unit,
            offset,
            bytes,
            file,
        })
    }

    /// Replaces a client's process on a unit by one with other settings, and charges its memory to the new one.
    pub(crate) fn rehome(
        &mut self,
        id: ClientId,
        unit: u32,
        settings: &ProcessSettings,
        contexts: u32,
    ) -> Result<ProcessId, u32> {
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        let Some(before) = client.processes.remove(&unit) else {
            return self.admit(id, unit, settings, contexts);
        };
        let bytes = self
            .allocations
            .stretches
            .values()
            .filter(|stretch| stretch.charged == id && stretch.unit == unit && stretch.is_charged)
            .map(|stretch| stretch.bytes)
            .sum();
        self.machine.dismiss(before.id);
        self.owners.remove(&before.id);
        let admitted = self
            .admit(id, unit, settings, contexts)
            .and_then(|process| {
                let held = self.machine.allocate(process, bytes);
                held.map(|()| process).map_err(|_| OUT_OF_MEMORY)
            });
        if admitted.is_err() {
            // Restores the previous state, which fitted before.
            if let Some(client) = self.clients.get_mut(&id)
                && let Some(half) = client.processes.remove(&unit)
            {
                self.machine.dismiss(half.id);
                self.owners.remove(&half.id);
            }
            let bare = ProcessSettings {
                without_context: true,
                ..ProcessSettings::default()
            };
            let process = self.admit(id, unit, &bare, 0)?;
            let _held = self.machine.allocate(process, bytes);
        }
        admitted
    }
}
