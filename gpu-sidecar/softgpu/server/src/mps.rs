//! MPS servers: their clients, and how a fault of one affects the others.

use std::collections::{BTreeMap, BTreeSet};

use softgpu_wire::message::{Kind, Message, ProcessLine};

use crate::client::ClientId;
use crate::server::Server;
use crate::shared::new_key;

/// `CUDA_ERROR_LAUNCH_FAILED`, reported to clients that share the GPU with a faulting one.
const LAUNCH_FAILED: u32 = 719;
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`: there is no such MPS server, or it has ended.
const CONNECTION_FAILED: u32 = 805;
/// `CUDA_ERROR_MPS_SERVER_NOT_READY`: clients affected by a fault are still connected.
const NOT_READY: u32 = 807;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`, reported to a terminated client.
const TERMINATED: u32 = 810;

#[derive(Debug, Default)]
struct MpsServer {
    /// Clients affected by a fault; new ones are admitted when all of them are gone.
    hit: BTreeSet<ClientId>,
}

/// All MPS servers; see the [module](self).
#[derive(Debug)]
pub(crate) struct MpsServers {
    servers: BTreeMap<u32, MpsServer>,
    next: u32,
}

impl Default for MpsServers {
    /// Numbering starts at random, so that a client admitted by the daemon of another software GPU is not mistaken for
    /// one of this server's clients.
    fn default() -> Self {
        let [random, _] = new_key();
        Self {
            servers: BTreeMap::new(),
            next: u32::try_from(random >> 33).unwrap_or_default(),
        }
    }
}

impl MpsServers {
    /// Adds a server; returns its number.
    pub(crate) fn add(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        self.servers.insert(number, MpsServer::default());
        number
    }

    /// Checks that a server admits clients; fails with a `CUresult` otherwise.
    pub(crate) fn admits(&self, number: u32) -> Result<(), u32> {
        match self.servers.get(&number) {
            None => Err(CONNECTION_FAILED),
            Some(server) if !server.hit.is_empty() => Err(NOT_READY),
            Some(_) => Ok(()),
        }
    }

    /// Removes a client that is gone from all servers.
    pub(crate) fn client_gone(&mut self, client: ClientId) {
        for server in self.servers.values_mut() {
            server.hit.remove(&client);
        }
    }
}

impl Server {
    /// Marks the contexts of a client on the units selected by `is_meant` as broken, and drops their commands.
    pub(crate) fn break_contexts(
        &mut self,
        id: ClientId,
        error: u32,
        is_meant: impl Fn(u32) -> bool,
    ) {
        let Ok(rings) = self.rings(id) else {
            return;
        };
        let mut broken = Vec::new();
        for (number, context) in (0_u32..).zip(rings.contexts.iter_mut()) {
            let Some(context) = context.as_mut().filter(|context| is_meant(context.unit)) else {
                continue;
            };
            if !context.is_broken {
                context.is_broken = true;
                rings.page.set_fault(number, error);
                broken.push((number, context.process));
            }
        }
        for &(_, process) in &broken {
            self.machine.abort(process);
        }
        // All contexts of one process on a unit share one process of the timeline, and end together.
        let numbers: Vec<_> = broken.into_iter().map(|(number, _)| number).collect();
        self.drop_commands(id, |context| numbers.contains(&context));
    }

    /// Handles an error in a client's context. Without MPS it affects this client only; with MPS, all clients of the
    /// server on the GPU.
    pub(crate) fn fault(&mut self, id: ClientId, context: u32, error: u32) {
        self.statistics.faults += 1;
        let there = self
            .rings(id)
            .ok()
            .and_then(|rings| rings.contexts.get(context as usize).copied().flatten());
        let Some(unit) = there.map(|context| context.unit) else {
            return;
        };
        let mps = self
            .clients
            .get(&id)
            .and_then(|client| client.processes.get(&unit))
            .and_then(|process| process.mps);
        self.break_contexts(id, error, |of| of == unit);
        let Some(mps) = mps else {
            return;
        };
        let mut hit = vec![id];
        for other in self.clients_of(mps, Some(unit)) {
            if other != id {
                self.break_contexts(other, LAUNCH_FAILED, |of| of == unit);
                hit.push(other);
            }
        }
        let pids: Vec<_> = hit
            .iter()
            .filter_map(|id| self.clients.get(id))
            .map(|client| ProcessLine {
                pid: client.pid,
                unit,
                ..ProcessLine::default()
            })
            .flat_map(|line| line.encode())
            .collect();
        if let Some(server) = self.mps.servers.get_mut(&mps) {
            server.hit.extend(hit);
        }
        // Notifies the daemon, which admits no client until all affected ones are gone.
        let daemon = self
            .clients
            .iter()
            .find(|(_, client)| client.mps == Some(mps))
            .map(|(id, _)| *id);
        if let Some(daemon) = daemon {
            let words = [u64::from(unit), u64::from(error)];
            self.answer(daemon, &Message::new(Kind::Fault, &words).with_bytes(pids));
        }
    }

    /// Returns the clients of an MPS server, on one unit or on any.
    pub(crate) fn clients_of(&self, mps: u32, unit: Option<u32>) -> Vec<ClientId> {
        let is_client = |client: &&crate::client::Client| {
            let mut processes = client.processes.iter();
            processes.any(|(on, process)| {
                process.mps == Some(mps) && unit.is_none_or(|unit| unit == *on)
            })
        };
        let clients = self.clients.iter().filter(|(_, client)| is_client(client));
        clients.map(|(id, _)| *id).collect()
    }

    /// Removes an MPS server and breaks its clients' contexts: they have lost their connection.
    pub(crate) fn end_mps_server(&mut self, mps: u32) {
        for client in self.clients_of(mps, None) {
            self.break_contexts(client, CONNECTION_FAILED, |_| true);
        }
        self.mps.servers.remove(&mps);
    }

    /// Terminates a client of an MPS server; returns `false` if it has none with this pid.
    pub(crate) fn terminate(&mut self, mps: u32, pid: u32) -> bool {
        let its: Vec<_> = self
            .clients_of(mps, None)
            .into_iter()
            .filter(|id| self.clients.get(id).is_some_and(|client| client.pid == pid))
            .collect();
        for id in &its {
            self.break_contexts(*id, TERMINATED, |_| true);
        }
        !its.is_empty()
    }
}
