//! Requests of clients over their sockets. A client that sends a malformed message, or does not read its answers, is
//! disconnected.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::machine::{MpsServer, ProcessSettings};
use device::op::Graph;
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::clock;
use softgpu_wire::graph;
use softgpu_wire::message::{
    CheckpointStep, Kind, Message, MessageError, ProcessLine, Role, VERSION,
};
use softgpu_wire::page::{CONTEXTS, Page, Shared};

use crate::client::{ClientId, Context, Rings};
use crate::memory::{INVALID_VALUE, OUT_OF_MEMORY, UNAVAILABLE};
use crate::server::Server;
use crate::submit;

/// Largest number of requests of one client served before other clients.
const REQUESTS_PER_TURN: usize = 32;
/// Largest size of a graph's file, in bytes.
const GRAPH_BYTES_MAX: u64 = 1 << 28;
/// `CUDA_ERROR_NOT_PERMITTED`: the request does not suit the client's role.
const NOT_PERMITTED: u32 = 800;
/// Xid 79, "GPU has fallen off the bus", after which the GPU is lost.
const XID_LOST: u64 = 79;

/// Result of a request: an answer, `None` if it follows later, or an error as a `CUresult`.
type Answer = Result<Option<Message>, u32>;

fn done(kind: Kind, words: &[u64]) -> Answer {
    Ok(Some(Message::new(kind, words)))
}

fn number(word: u64) -> Result<u32, u32> {
    u32::try_from(word).map_err(|_| INVALID_VALUE)
}

impl Server {
    /// Serves the pending requests of a client.
    pub(crate) fn serve(&mut self, id: ClientId) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(client) = self.clients.get(&id) else {
                return;
            };
            let message = match Message::receive(&client.socket, RecvFlags::DONTWAIT) {
                Ok(message) => message,
                Err(MessageError::System(rustix::io::Errno::AGAIN)) => return,
                Err(MessageError::Closed) => {
                    self.disconnect(id);
                    return;
                }
                Err(_) => {
                    self.statistics.nonsense += 1;
                    self.disconnect(id);
                    return;
                }
            };
            let kind = message.kind;
            // Commands appended to rings before the request was made precede it.
            self.take_all();
            self.advance_to_now();
            let answer = match self.request(id, message) {
                Ok(None) => continue,
                Ok(Some(answer)) => answer,
                Err(error) => Message::refusal(kind, error),
            };
            self.answer(id, &answer);
        }
    }

    /// Removes a client whose connection has ended, or is to end. Commands that others have appended before precede it.
    fn disconnect(&mut self, id: ClientId) {
        self.take_all_but(Some(id));
        self.remove(id);
    }

    /// Sends an answer; disconnects a client that does not read.
    pub(crate) fn answer(&mut self, id: ClientId, answer: &Message) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        if answer.send(&client.socket, SendFlags::DONTWAIT).is_err() {
            self.disconnect(id);
        }
    }

    fn request(&mut self, id: ClientId, message: Message) -> Answer {
        let kind = message.kind;
        let role = self.clients.get(&id).and_then(|client| client.role);
        if role.is_none() && kind != Kind::Hello {
            return Err(NOT_PERMITTED);
        }
        let [first, second, third, fourth, ..] = message.words;
        match kind {
            Kind::Hello => self.hello(id, &message),
            Kind::Context => self.context(id, first, second, third, fourth),
            Kind::ContextDestroy => {
                self.destroy_context(id, first)?;
                done(kind, &[])
            }
            Kind::Allocate => {
                let file = (fourth != 0).then_some((third, fourth));
                done(kind, &[self.allocate(id, number(first)?, second, file)?])
            }
            Kind::Free => {
                self.free(id, first)?;
                done(kind, &[])
            }
            Kind::Import => {
                let (own, unit, bytes) = self.import(id, (first, second))?;
                done(kind, &[own, unit.into(), bytes])
            }
            Kind::Offer => {
                let file = only_file(message)?;
                let key = self.offer(id, first, second, third, file)?;
                done(kind, &key)
            }
            Kind::Accept => {
                let accepted = self.accept_offer(id, [first, second])?;
                let words = [
                    accepted.number,
                    accepted.unit.into(),
                    accepted.offset,
                    accepted.bytes,
                ];
                Ok(Some(Message::new(kind, &words).with_file(accepted.file)))
            }
            Kind::MemoryInfo => self.memory_info(id, number(first)?),
            Kind::Graph => {
                let file = only_file(message)?;
                done(kind, &[self.graph(id, &file)?.into()])
            }
            Kind::GraphDestroy => {
                let graph = number(first)?;
                // A launch already in the ring must be taken before the graph is removed.
                self.take(id);
                let rings = self.rings(id).map_err(|_| INVALID_VALUE)?;
                rings.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
                done(kind, &[])
            }
            Kind::EventOffer => {
                let slot = number(first)?;
                let key = self.offer_event(id, slot, only_file(message)?);
                done(kind, &key.ok_or(INVALID_VALUE)?)
            }
            Kind::EventAccept => {
                let page = self.accept_event(id, [first, second], number(third)?);
                Ok(Some(
                    Message::new(kind, &[]).with_file(page.ok_or(INVALID_VALUE)?),
                ))
            }
            Kind::Flush => {
                let latest = match first.checked_sub(1) {
                    Some(slot) => self.latest_record(id, number(slot)?),
                    None => 0,
                };
                done(kind, &[latest])
            }
            Kind::Fault => {
                self.fault(id, number(first)?, number(second)?);
                done(kind, &[])
            }
            Kind::Checkpoint => {
                let step = CheckpointStep::of(second).ok_or(INVALID_VALUE)?;
                Ok(self.checkpoint(id, number(first)?, step, third))
            }
            _ => self.look(id, message),
        }
    }

    /// Handles requests that query or control the server.
    fn look(&mut self, id: ClientId, message: Message) -> Answer {
        let kind = message.kind;
        let [first, second, ..] = message.words;
        match kind {
            Kind::Processes => {
                let unit = number(first)?;
                self.check_not_lost(unit)?;
                self.take_ledger(true);
                let lines = self.process_lines(|on, _| on == unit);
                Ok(Some(Message::new(kind, &[]).with_bytes(lines)))
            }
            Kind::Utilisation => {
                let unit = number(first)?;
                self.check_not_lost(unit)?;
                self.take_ledger(true);
                done(kind, &self.statistics.utilisation(unit))
            }
            Kind::Statistics => {
                let clients = self
                    .clients
                    .values()
                    .filter(|client| client.rings.is_some())
                    .count();
                let scale = (self.config.time, self.config.bytes);
                let text = self.statistics.json(clients, scale);
                Ok(Some(Message::new(kind, &[]).with_bytes(text.into_bytes())))
            }
            Kind::Ledger => {
                self.take_ledger(true);
                self.write_ledger();
                done(kind, &[])
            }
            Kind::Inject => self.inject(first, second),
            Kind::Watch => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.watches = true;
                }
                done(kind, &[])
            }
            Kind::MpsServer => {
                let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
                if client.role != Some(Role::Mps) || client.mps.is_some() {
                    return Err(NOT_PERMITTED);
                }
                let server = self.mps.add();
                client.mps = Some(server);
                done(kind, &[server.into()])
            }
            Kind::MpsClients => {
                let server = self
                    .clients
                    .get(&id)
                    .and_then(|client| client.mps)
                    .ok_or(NOT_PERMITTED)?;
                let lines = self.process_lines(|_, process| process.mps == Some(server));
                Ok(Some(Message::new(kind, &[]).with_bytes(lines)))
            }
            Kind::MpsTerminate => {
                let server = self
                    .clients
                    .get(&id)
                    .and_then(|client| client.mps)
                    .ok_or(NOT_PERMITTED)?;
                if self.terminate(server, number(first)?) {
                    done(kind, &[])
                } else {
                    Err(INVALID_VALUE)
                }
            }
            Kind::Unsupported => {
                let name = String::from_utf8_lossy(&message.bytes);
                let is_name = name.len() < 100 && name.starts_with("cu");
                if is_name {
                    count(&mut self.statistics.unsupported, name.into_owned());
                }
                done(kind, &[])
            }
            Kind::Modelled => {
                let name = String::from_utf8_lossy(&message.bytes);
                if (1..=256).contains(&name.len()) {
                    count(&mut self.statistics.modelled, name.into_owned());
                }
                done(kind, &[])
            }
            // Kinds of the MPS daemon's own protocol, or handled above.
            _ => Err(NOT_PERMITTED),
        }
    }

    fn hello(&mut self, id: ClientId, message: &Message) -> Answer {
        let [version, role, ..] = message.words;
        if version != VERSION {
            // `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`
            return Err(803);
        }
        let role = Role::of(role).ok_or(INVALID_VALUE)?;
        let config = self.config.text().into_bytes();
        let duplicate = |file: &OwnedFd| file.try_clone().map_err(|_| 304_u32);
        let (bell, ring) = (duplicate(&self.bell_file)?, duplicate(&self.ring)?);
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        if client.role.is_some() {
            return Err(INVALID_VALUE);
        }
        let mut answer = Message::new(Kind::Hello, &[id.0]).with_bytes(config);
        if role == Role::Cuda {
            let (page, file) = Shared::<Page>::create().map_err(|_| OUT_OF_MEMORY)?;
            client.rings = Some(Rings::new(page));
            answer = answer.with_file(file).with_file(bell).with_file(ring);
        }
        client.role = Some(role);
        client.name = String::from_utf8_lossy(&message.bytes)
            .chars()
            .take(64)
            .collect();
        Ok(Some(answer))
    }

    fn context(
        &mut self,
        id: ClientId,
        unit: u64,
        percentage: u64,
        limit: u64,
        mps: u64,
    ) -> Answer {
        let unit = number(unit)?;
        if self.is_lost(unit) {
            return Err(UNAVAILABLE);
        }
        let mps = match mps.checked_sub(1) {
            Some(server) => {
                let server = number(server)?;
                self.mps.admits(server)?;
                Some(MpsServer(server))
            }
            None => None,
        };
        let rings = self.rings(id).map_err(|_| NOT_PERMITTED)?;
        let free = rings
            .contexts
            .iter()
            .position(Option::is_none)
            .ok_or(OUT_OF_MEMORY)?;
        let is_broken = rings
            .contexts
            .iter()
            .flatten()
            .any(|context| context.unit == unit && context.is_broken);
        if is_broken {
            // As in the driver: a process with such an error on a unit gets no new context there.
            return Err(UNAVAILABLE);
        }
        let settings = ProcessSettings {
            mps,
            active_thread_percentage_hundredths: (percentage > 0)
                .then(|| number(percentage))
                .transpose()?,
            memory_limit: (limit != u64::MAX).then_some(limit),
            without_context: false,
        };
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        let process = match client.processes.get_mut(&unit) {
            Some(process) if process.contexts > 0 => {
                process.contexts += 1;
                process.id
            }
            _ => self.rehome(id, unit, &settings, 1)?,
        };
        let sms = self.machine.sms_of(process).unwrap_or(0);
        let context = Context {
            unit,
            process,
            is_broken: false,
        };
        let rings = self.rings(id).map_err(|_| NOT_PERMITTED)?;
        rings.contexts[free] = Some(context);
        let slot = u32::try_from(free).unwrap_or(u32::MAX);
        rings.page.set_fault(slot, 0);
        done(Kind::Context, &[slot.into(), sms.into()])
    }

    fn destroy_context(&mut self, id: ClientId, slot: u64) -> Result<(), u32> {
        let slot = usize::try_from(slot)
            .ok()
            .filter(|slot| *slot < CONTEXTS)
            .ok_or(INVALID_VALUE)?;
        let rings = self.rings(id).map_err(|_| INVALID_VALUE)?;
        let context = rings.contexts[slot].take().ok_or(INVALID_VALUE)?;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        self.drop_commands(id, |of| of == number);
        let client = self.clients.get_mut(&id).ok_or(INVALID_VALUE)?;
        let Some(process) = client.processes.get_mut(&context.unit) else {
            return Ok(());
        };
        process.contexts -= 1;
        if process.contexts > 0 {
            return Ok(());
        }
        let process = process.id;
        if !self.holds_memory(id, context.unit) {
            let Some(client) = self.clients.get_mut(&id) else {
                return Ok(());
            };
            client.processes.remove(&context.unit);
            self.machine.dismiss(process);
            self.owners.remove(&process);
            return Ok(());
        }
        let bare = ProcessSettings {
            without_context: true,
            ..ProcessSettings::default()
        };
        self.rehome(id, context.unit, &bare, 0).map(|_| ())
    }

    fn memory_info(&mut self, id: ClientId, unit: u32) -> Answer {
        self.check_not_lost(unit)?;
        let memory = self.machine.memory(unit).ok_or(INVALID_VALUE)?;
        let process = self
            .clients
            .get(&id)
            .and_then(|client| client.processes.get(&unit));
        let own = process.map_or(0, |process| memory.held(process.id));
        done(Kind::MemoryInfo, &[memory.free(), memory.capacity(), own])
    }

    fn check_not_lost(&self, unit: u32) -> Result<(), u32> {
        if self.is_lost(unit) {
            Err(UNAVAILABLE)
        } else {
            Ok(())
        }
    }

    fn graph(&mut self, id: ClientId, file: &OwnedFd) -> Result<u32, u32> {
        let size = rustix::fs::fstat(file).map_err(|_| INVALID_VALUE)?.st_size;
        let size = u64::try_from(size)
            .ok()
            .filter(|size| *size <= GRAPH_BYTES_MAX);
        let mut bytes =
            vec![0; usize::try_from(size.ok_or(OUT_OF_MEMORY)?).map_err(|_| OUT_OF_MEMORY)?];
        let mut at = 0;
        while at < bytes.len() {
            match rustix::io::pread(file, &mut bytes[at..], at as u64) {
                Ok(read) if read > 0 => at += read,
                _ => return Err(INVALID_VALUE),
            }
        }
        let mut graph = Graph::default();
        for node in graph::decode(&bytes).ok_or(INVALID_VALUE)? {
            let op = submit::op(&node.record.command).ok_or(INVALID_VALUE)?;
            graph.add(op, &node.after).ok_or(INVALID_VALUE)?;
        }
        let rings = self.rings(id).map_err(|_| NOT_PERMITTED)?;
        rings.next_graph += 1;
        rings.graphs.insert(rings.next_graph, Arc::new(graph));
        Ok(rings.next_graph)
    }

    fn process_lines(&self, is_meant: impl Fn(u32, &crate::client::Process) -> bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        for client in self.clients.values() {
            for (unit, process) in &client.processes {
                if !is_meant(*unit, process) {
                    continue;
                }
                let line = ProcessLine {
                    pid: client.pid,
                    unit: *unit,
                    memory: self
                        .machine
                        .memory(*unit)
                        .map_or(0, |memory| memory.held(process.id)),
                    contexts: process.contexts,
                    sms: self.machine.sms_of(process.id).unwrap_or(0),
                    mps: process.mps.map_or(0, |server| server + 1),
                    percentage_hundredths: process.percentage_hundredths,
                    millisms_ns: self.statistics.millisms_ns(process.id),
                };
                bytes.extend(line.encode());
            }
        }
        bytes.truncate(
            softgpu_wire::message::PAYLOAD_MAX / softgpu_wire::message::PROCESS_LINE
                * softgpu_wire::message::PROCESS_LINE,
        );
        bytes
    }

    /// Injects an error into a GPU and notifies subscribers; Xid 79 makes the GPU lost.
    fn inject(&mut self, gpu: u64, xid: u64) -> Answer {
        let place = usize::try_from(gpu).map_err(|_| INVALID_VALUE)?;
        let units: Vec<_> = (0..u32::try_from(self.machine.units()).unwrap_or(u32::MAX))
            .filter(|unit| {
                self.machine
                    .unit_info(*unit)
                    .is_some_and(|info| info.gpu == place)
            })
            .collect();
        if units.is_empty() || xid == 0 {
            return Err(INVALID_VALUE);
        }
        if xid == XID_LOST && !self.lost.contains(&place) {
            self.lost.push(place);
            for client in self.clients.keys().copied().collect::<Vec<_>>() {
                self.break_contexts(client, UNAVAILABLE, |unit| units.contains(&unit));
            }
        }
        let event = Message::new(Kind::Inject, &[gpu, xid, clock::now().0]);
        let watchers: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, client)| client.watches)
            .map(|(id, _)| *id)
            .collect();
        for watcher in watchers {
            self.answer(watcher, &event);
        }
        done(Kind::Inject, &[])
    }
}

fn only_file(message: Message) -> Result<OwnedFd, u32> {
    let [file] = <[OwnedFd; 1]>::try_from(message.files).map_err(|_| INVALID_VALUE)?;
    Ok(file)
}

/// Counts a name, of which there are at most 2,000.
fn count(names: &mut BTreeMap<String, u64>, name: String) {
    const NAMES_MAX: usize = 2_000;
    if names.len() < NAMES_MAX || names.contains_key(&name) {
        *names.entry(name).or_default() += 1;
    }
}
