//! Commands from the clients' rings to the timeline.

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::WorkId;
use device::op::{CopyKind, Op};
use device::{Span, Time};
use softgpu_wire::page::{Completion, DROPPED, IN_FLIGHT};
use softgpu_wire::record::{Command, CopyWay, KernelRecord, LawCode, Record};

use crate::client::{ClientId, Context, Event, Recorded, Stream};
use crate::server::{Running, RunningKind, Server};

fn law(code: LawCode) -> Law {
    let parameter = f64::from(code.parameter_millionths) / 1e6;
    let law = match code.law {
        1 => Law::Saturating { at: parameter },
        2 => Law::Knee { at: parameter },
        3 => Law::Amdahl { serial: parameter },
        4 => Law::Power {
            exponent: parameter,
        },
        _ => Law::Linear,
    };
    // The client library has checked the parameter; an invalid one becomes linear.
    law.check().unwrap_or_default()
}

/// Returns the timeline's operation for a command; `None` if the command is no work.
pub(crate) fn op(command: &Command) -> Option<Op> {
    Some(match *command {
        Command::Kernel(KernelRecord {
            duration_ns,
            sms,
            law: code,
            interference_millionths,
        }) => Op::Kernel(Kernel {
            duration: Span(duration_ns),
            sms,
            law: law(code),
            interference_millionths,
        }),
        Command::Copy { way, bytes } => {
            let way = match way {
                CopyWay::HostToDevice => CopyKind::HostToDevice,
                CopyWay::DeviceToHost => CopyKind::DeviceToHost,
                CopyWay::PageableToDevice => CopyKind::PageableToDevice,
                CopyWay::DeviceToPageable => CopyKind::DeviceToPageable,
                CopyWay::Within => CopyKind::Within,
                CopyWay::Peer(unit) => CopyKind::Peer(unit),
            };
            Op::Copy { kind: way, bytes }
        }
        Command::Set { bytes } => Op::Set { bytes },
        Command::Host => Op::Host,
        Command::Nothing => Op::Delay(Span::ZERO),
        _ => return None,
    })
}

/// A violation of the protocol by the client.
pub(crate) struct ProtocolViolation;

impl Server {
    /// Takes all commands out of all rings, also of clients that were idle when the round began.
    pub(crate) fn take_all(&mut self) {
        self.take_all_but(None);
    }

    /// Takes all commands out of all rings except this client's.
    pub(crate) fn take_all_but(&mut self, except: Option<ClientId>) {
        let ids: Vec<_> = self
            .clients
            .iter()
            .filter(|(id, client)| {
                let rings = client.rings.as_ref().filter(|_| except != Some(**id));
                rings.is_some_and(|rings| rings.page.has_commands(rings.head))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.take(id);
        }
    }

    /// Takes all commands out of the rings of the clients that the present round looks at.
    pub(crate) fn take_busy(&mut self) {
        for at in 0..self.busy.len() {
            let id = self.busy[at];
            let rings = self.clients.get(&id);
            let rings = rings.and_then(|client| client.rings.as_ref());
            if rings.is_some_and(|rings| rings.page.has_commands(rings.head)) {
                self.take(id);
            }
        }
    }

    /// Takes all commands out of a client's ring.
    pub(crate) fn take(&mut self, id: ClientId) {
        self.take_before(id, Time::NEVER);
    }

    /// Takes the commands stamped before `end` out of a client's ring.
    fn take_before(&mut self, id: ClientId, end: Time) {
        loop {
            let Some(rings) = self
                .clients
                .get_mut(&id)
                .and_then(|client| client.rings.as_mut())
            else {
                return;
            };
            if rings.is_overfull() {
                self.statistics.nonsense += 1;
                self.remove(id);
                return;
            }
            // A correct client stops at its own bound, except for commands it cannot defer.
            if rings.in_flight() > 2 * IN_FLIGHT {
                return;
            }
            let record = match rings.page.front(rings.head) {
                Ok(None) => return,
                Ok(Some(words)) => Record::decode(&words).ok_or(ProtocolViolation),
                Err(_) => Err(ProtocolViolation),
            };
            if record.as_ref().is_ok_and(|record| record.stamp >= end) {
                return;
            }
            rings.page.pop(&mut rings.head);
            if record.and_then(|record| self.submit(id, &record)).is_err() {
                self.statistics.nonsense += 1;
                self.remove(id);
                return;
            }
        }
    }

    fn submit(&mut self, id: ClientId, record: &Record) -> Result<(), ProtocolViolation> {
        self.statistics.commands += 1;
        let stamp = record.stamp;
        // Stamped before a time already computed: the client was delayed between reading the clock and appending.
        let late = self.machine.now().since(stamp);
        if late > Span::ZERO {
            self.statistics.late.add(late);
        }
        let slot = record.stream.0;
        match record.command {
            Command::StreamCreate { context } => return self.create_stream(id, slot, context),
            Command::StreamDestroy => {
                let rings = self.rings(id)?;
                let stream = rings.streams.get_mut(slot as usize).and_then(Option::take);
                let stream = stream.ok_or(ProtocolViolation)?;
                self.machine.destroy_stream(stream.id);
                return Ok(());
            }
            Command::HostDone { command, node } => {
                let is_its = |running: &Running| running.client == id;
                if self.running.get(&command).is_some_and(is_its) {
                    let at = stamp.max(self.machine.now());
                    self.machine.release(WorkId { command, node }, at);
                }
                return Ok(());
            }
            Command::EventDestroy { event } => {
                let rings = self.rings(id)?;
                let slot = event.0;
                if let Some(event) = rings.events.remove(&slot) {
                    match event.shared {
                        Some(shared) => self.leave_shared_event(shared, id, Some(slot)),
                        None => self.machine.destroy_event(event.id),
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        self.submit_work(id, slot, stamp, record)
    }

    pub(crate) fn rings(
        &mut self,
        id: ClientId,
    ) -> Result<&mut crate::client::Rings, ProtocolViolation> {
        let client = self.clients.get_mut(&id).ok_or(ProtocolViolation)?;
        client.rings.as_mut().ok_or(ProtocolViolation)
    }

    fn create_stream(
        &mut self,
        id: ClientId,
        slot: u32,
        context: u32,
    ) -> Result<(), ProtocolViolation> {
        let rings = self.rings(id)?;
        let there = rings.contexts.get(context as usize).copied().flatten();
        let there = there.ok_or(ProtocolViolation)?;
        if slot as usize >= softgpu_wire::page::STREAMS {
            return Err(ProtocolViolation);
        }
        let stream = self.machine.stream(there.process);
        let rings = self.rings(id)?;
        if rings.streams.len() <= slot as usize {
            rings.streams.resize(slot as usize + 1, None);
        }
        let before = rings.streams[slot as usize].replace(Stream {
            id: stream,
            context,
        });
        if before.is_some() {
            Err(ProtocolViolation)
        } else {
            Ok(())
        }
    }

    fn submit_work(
        &mut self,
        id: ClientId,
        slot: u32,
        stamp: Time,
        record: &Record,
    ) -> Result<(), ProtocolViolation> {
        let rings = self.rings(id)?;
        let stream = rings
            .streams
            .get(slot as usize)
            .copied()
            .flatten()
            .ok_or(ProtocolViolation)?;
        let context = rings
            .contexts
            .get(stream.context as usize)
            .copied()
            .flatten();
        rings.submitted += 1;
        let is_usable = |context: &Context| !context.is_broken;
        if !context.as_ref().is_some_and(is_usable) {
            // The command counts as ended: a thread that waits for it sees the context's error.
            let now = self.machine.now();
            if let Command::Record { event, number } = record.command {
                let (_, kind) = self.record(id, event.0, number)?;
                match kind {
                    RunningKind::SharedRecord { event, number } => {
                        self.shared_happened(event, number, now)
                    }
                    _ => self.rings(id)?.event_occurred(event.0, None, number, now),
                }
            }
            let rings = self.rings(id)?;
            if let Some(token) = record.token {
                rings.complete(Completion {
                    token: token.0,
                    value: 0,
                    turn: DROPPED,
                });
            }
            rings.retire(slot, now);
            rings.publish(slot);
            return Ok(());
        }
        let mut kind = RunningKind::Plain;
        let op = match record.command {
            Command::Record { event, number } => {
                let (op, is) = self.record(id, event.0, number)?;
                kind = is;
                op
            }
            Command::Wait { event } => {
                let (op, is) = self.wait(id, event.0, stamp)?;
                kind = is;
                op
            }
            Command::Graph { graph } => {
                let graph = self
                    .rings(id)?
                    .graphs
                    .get(&graph)
                    .ok_or(ProtocolViolation)?;
                Op::Graph(Arc::clone(graph))
            }
            ref command => op(command).ok_or(ProtocolViolation)?,
        };
        let command = self
            .machine
            .submit(stream.id, stamp, op)
            .map_err(|_| ProtocolViolation)?;
        let running = Running {
            client: id,
            context: stream.context,
            slot,
            token: record.token,
            kind,
        };
        self.running.insert(command, running);
        if let RunningKind::Record { event, .. } = kind {
            let queued = self.machine.queued(stream.id).unwrap_or(0);
            let rings = self.rings(id)?;
            let count = rings.ended(slot) + queued;
            if let Some(event) = rings.events.get_mut(&event) {
                let stream = stream.id;
                event.recorded = Some(Recorded {
                    slot,
                    stream,
                    count,
                });
            }
        }
        Ok(())
    }

    /// Returns the event in a slot, creating it on first use.
    fn event(&mut self, id: ClientId, slot: u32) -> Result<&mut Event, ProtocolViolation> {
        if slot as usize >= softgpu_wire::page::EVENTS {
            return Err(ProtocolViolation);
        }
        if !self.rings(id)?.events.contains_key(&slot) {
            let event = Event {
                id: self.machine.event(),
                latest: 0,
                records: 0,
                published: 0,
                recorded: None,
                shared: None,
            };
            self.rings(id)?.events.insert(slot, event);
        }
        self.rings(id)?
            .events
            .get_mut(&slot)
            .ok_or(ProtocolViolation)
    }

    fn record(
        &mut self,
        id: ClientId,
        slot: u32,
        number: u64,
    ) -> Result<(Op, RunningKind), ProtocolViolation> {
        let event = self.event(id, slot)?;
        event.latest = number;
        event.records += 1;
        let (machine_id, shared) = (event.id, event.shared);
        let kind = match shared {
            None => RunningKind::Record {
                event: slot,
                id: machine_id,
                number,
            },
            Some(shared) => RunningKind::SharedRecord {
                event: shared,
                number: self.shared.record(shared).ok_or(ProtocolViolation)?,
            },
        };
        Ok((Op::Record(machine_id), kind))
    }

    fn wait(
        &mut self,
        id: ClientId,
        slot: u32,
        stamp: Time,
    ) -> Result<(Op, RunningKind), ProtocolViolation> {
        let event = self.event(id, slot)?;
        let (machine_id, shared, own) = (event.id, event.shared, event.records);
        let Some(shared) = shared else {
            // An event that could be shared but is not yet: the effects of its records are counted all the same.
            return Ok((
                Op::Wait(machine_id),
                RunningKind::SharedWait { records: own },
            ));
        };
        // Earlier records of other clients may still be in their rings. Later commands are not taken: they may wait for
        // this very client.
        for other in self.shared.others(shared, id) {
            self.take_before(other, stamp);
        }
        let records = self.shared.records(shared).ok_or(ProtocolViolation)?;
        Ok((Op::Wait(machine_id), RunningKind::SharedWait { records }))
    }
}
