//! Commands from the clients' rings into the timeline.

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::WorkId;
use device::op::{Op, Way};
use device::{Span, Time};
use softgpu_wire::page::{Completion, DROPPED, IN_FLIGHT};
use softgpu_wire::record::{Command, CopyWay, KernelRecord, LawCode, Record};

use crate::client::{ClientId, Context, Event, Stream};
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
    // Clients of ours have looked at the parameter before.
    law.check().unwrap_or_default()
}

/// What the timeline is told; `None` for what is no work.
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
                CopyWay::HostToDevice => Way::HostToDevice,
                CopyWay::DeviceToHost => Way::DeviceToHost,
                CopyWay::Within => Way::Within,
                CopyWay::Peer(unit) => Way::Peer(unit),
            };
            Op::Copy { way, bytes }
        }
        Command::Set { bytes } => Op::Set { bytes },
        Command::Host => Op::Host,
        Command::Nothing => Op::Delay(Span::ZERO),
        _ => return None,
    })
}

/// A client did what none of ours does.
pub(crate) struct Nonsense;

impl Server {
    /// Takes all there is out of all rings.
    pub(crate) fn take_all(&mut self) {
        let ids: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, client)| {
                let rings = client.rings.as_ref();
                rings.is_some_and(|rings| rings.page.has_commands(rings.head))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.take(id);
        }
    }

    /// Takes all there is out of a client's ring.
    pub(crate) fn take(&mut self, id: ClientId) {
        self.take_before(id, Time::NEVER);
    }

    /// Takes out of a client's ring what was asked for before this moment.
    fn take_before(&mut self, id: ClientId, end: Time) {
        loop {
            let Some(rings) = self
                .clients
                .get_mut(&id)
                .and_then(|client| client.rings.as_mut())
            else {
                return;
            };
            if rings.is_stuffed() {
                self.statistics.nonsense += 1;
                self.remove(id);
                return;
            }
            // A client of ours stops at its own bound, but for what it cannot do without.
            if rings.in_flight() > 2 * IN_FLIGHT {
                return;
            }
            let record = match rings.page.front(rings.head) {
                Ok(None) => return,
                Ok(Some(words)) => Record::decode(&words).ok_or(Nonsense),
                Err(_) => Err(Nonsense),
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

    fn submit(&mut self, id: ClientId, record: &Record) -> Result<(), Nonsense> {
        self.statistics.commands += 1;
        let stamp = record.stamp;
        // Asked for before something that has been computed already: a client that was held up between clock and ring.
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
                let stream = stream.ok_or(Nonsense)?;
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

    pub(crate) fn rings(&mut self, id: ClientId) -> Result<&mut crate::client::Rings, Nonsense> {
        let client = self.clients.get_mut(&id).ok_or(Nonsense)?;
        client.rings.as_mut().ok_or(Nonsense)
    }

    fn create_stream(&mut self, id: ClientId, slot: u32, context: u32) -> Result<(), Nonsense> {
        let rings = self.rings(id)?;
        let there = rings.contexts.get(context as usize).copied().flatten();
        let there = there.ok_or(Nonsense)?;
        if slot as usize >= softgpu_wire::page::STREAMS {
            return Err(Nonsense);
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
            Err(Nonsense)
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
    ) -> Result<(), Nonsense> {
        let rings = self.rings(id)?;
        let stream = rings
            .streams
            .get(slot as usize)
            .copied()
            .flatten()
            .ok_or(Nonsense)?;
        let context = rings
            .contexts
            .get(stream.context as usize)
            .copied()
            .flatten();
        rings.submitted += 1;
        let is_usable = |context: &Context| !context.is_broken;
        if !context.as_ref().is_some_and(is_usable) {
            // It counts as ended: who waits for it sees the context's error.
            let now = self.machine.now();
            if let Command::Record { event, number } = record.command {
                let (_, kind) = self.record(id, event.0, number)?;
                match kind {
                    RunningKind::SharedRecord { event, number } => {
                        self.shared_happened(event, number, now)
                    }
                    _ => self.rings(id)?.happen(event.0, None, number, now),
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
                let graph = self.rings(id)?.graphs.get(&graph).ok_or(Nonsense)?;
                Op::Graph(Arc::clone(graph))
            }
            ref command => op(command).ok_or(Nonsense)?,
        };
        let command = self
            .machine
            .submit(stream.id, stamp, op)
            .map_err(|_| Nonsense)?;
        let running = Running {
            client: id,
            context: stream.context,
            slot,
            token: record.token,
            kind,
        };
        self.running.insert(command, running);
        Ok(())
    }

    /// The event at a place, made when it is first used.
    fn event(&mut self, id: ClientId, slot: u32) -> Result<&mut Event, Nonsense> {
        if slot as usize >= softgpu_wire::page::EVENTS {
            return Err(Nonsense);
        }
        if !self.rings(id)?.events.contains_key(&slot) {
            let event = Event {
                id: self.machine.event(),
                latest: 0,
                records: 0,
                published: 0,
                shared: None,
            };
            self.rings(id)?.events.insert(slot, event);
        }
        self.rings(id)?.events.get_mut(&slot).ok_or(Nonsense)
    }

    fn record(
        &mut self,
        id: ClientId,
        slot: u32,
        number: u64,
    ) -> Result<(Op, RunningKind), Nonsense> {
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
                number: self.shared.record(shared).ok_or(Nonsense)?,
            },
        };
        Ok((Op::Record(machine_id), kind))
    }

    fn wait(
        &mut self,
        id: ClientId,
        slot: u32,
        stamp: Time,
    ) -> Result<(Op, RunningKind), Nonsense> {
        let event = self.event(id, slot)?;
        let (machine_id, shared, own) = (event.id, event.shared, event.records);
        let Some(shared) = shared else {
            // One that could be shared and has not been: its records' effects are counted all the same.
            return Ok((
                Op::Wait(machine_id),
                RunningKind::SharedWait { records: own },
            ));
        };
        // What others have recorded before is in their rings, if it is not here yet. Not what came after: that may wait
        // for this very client.
        for other in self.shared.others(shared, id) {
            self.take_before(other, stamp);
        }
        let records = self.shared.records(shared).ok_or(Nonsense)?;
        Ok((Op::Wait(machine_id), RunningKind::SharedWait { records }))
    }
}
