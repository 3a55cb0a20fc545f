//! Events shared between processes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use device::Time;
use device::machine::EventId;

use softgpu_wire::record::EventSlot;

use crate::client::{ClientId, Event};
use crate::server::Server;

/// Number of a shared event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SharedId(u64);

#[derive(Debug)]
struct SharedEvent {
    id: EventId,
    /// Page that counts the effects of its records.
    page: OwnedFd,
    key: [u64; 2],
    /// Number of the event's last record.
    latest: u64,
    /// Number of records made.
    records: u64,
    /// Number and time of the event's last record that has occurred.
    happened: (u64, Time),
    /// Clients that hold it, with its slot in each.
    holders: Vec<(ClientId, u32)>,
}

/// All shared events; see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct SharedEvents {
    events: HashMap<SharedId, SharedEvent>,
    by_key: HashMap<[u64; 2], SharedId>,
    next: u64,
}

impl SharedEvents {
    /// Counts a record; returns its number.
    pub(crate) fn record(&mut self, id: SharedId) -> Option<u64> {
        let event = self.events.get_mut(&id)?;
        event.latest += 1;
        event.records += 1;
        Some(event.latest)
    }

    /// Returns the number of records made.
    pub(crate) fn records(&self, id: SharedId) -> Option<u64> {
        self.events.get(&id).map(|event| event.records)
    }

    /// Returns the other clients that hold the event.
    pub(crate) fn others(&self, id: SharedId, but: ClientId) -> Vec<ClientId> {
        let holders = self.events.get(&id).map_or(&[][..], |event| &event.holders);
        holders
            .iter()
            .map(|(client, _)| *client)
            .filter(|client| *client != but)
            .collect()
    }

    fn latest(&self, id: SharedId) -> u64 {
        self.events.get(&id).map_or(0, |event| event.latest)
    }
}

/// Returns a random, unguessable key.
pub(crate) fn new_key() -> [u64; 2] {
    let mut bytes = [0_u8; 16];
    let _filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte])))
}

impl Server {
    /// Makes a client's event available to other processes; returns the key.
    pub(crate) fn offer_event(
        &mut self,
        id: ClientId,
        slot: u32,
        page: OwnedFd,
    ) -> Option<[u64; 2]> {
        // Its pending records count.
        self.take(id);
        let machine_event = self.rings(id).ok()?.events.get(&slot).map(|event| event.id);
        let machine_event = match machine_event {
            Some(event) => event,
            None => self.machine.event(),
        };
        let rings = self.rings(id).ok()?;
        let event = rings.events.entry(slot).or_insert_with(|| Event {
            id: machine_event,
            latest: 0,
            records: 0,
            published: 0,
            recorded: None,
            shared: None,
        });
        let (latest, records, shared) = (event.latest, event.records, event.shared);
        let happened = (event.published, Time::ZERO);
        if let Some(shared) = shared {
            return self.shared.events.get(&shared).map(|event| event.key);
        }
        self.shared.next += 1;
        let shared = SharedId(self.shared.next);
        let rings = self.rings(id).ok()?;
        rings.events.get_mut(&slot)?.shared = Some(shared);
        // Records are numbered from here on, whatever another event in this slot has left.
        rings
            .page
            .set_event(EventSlot(slot), happened.0, happened.1);
        let key = new_key();
        let event = SharedEvent {
            id: machine_event,
            page,
            key,
            latest,
            records,
            happened,
            holders: vec![(id, slot)],
        };
        self.shared.events.insert(shared, event);
        self.shared.by_key.insert(key, shared);
        Some(key)
    }

    /// Opens an offered event in a client's slot; returns the page of its effects.
    pub(crate) fn accept_event(
        &mut self,
        id: ClientId,
        key: [u64; 2],
        slot: u32,
    ) -> Option<OwnedFd> {
        let shared = *self.shared.by_key.get(&key)?;
        let event = self.shared.events.get_mut(&shared)?;
        let page = event.page.try_clone().ok()?;
        let (machine_event, latest, happened) = (event.id, event.latest, event.happened);
        event.holders.push((id, slot));
        let rings = self.rings(id).ok()?;
        let own = Event {
            id: machine_event,
            latest,
            records: 0,
            published: happened.0,
            recorded: None,
            shared: Some(shared),
        };
        // Records that occurred earlier are not published again.
        rings
            .page
            .set_event(EventSlot(slot), happened.0, happened.1);
        let before = rings.events.insert(slot, own);
        if let Some(before) = before.filter(|before| before.shared.is_none()) {
            self.machine.destroy_event(before.id);
        }
        Some(page)
    }

    /// Returns the number of an event's last record, by any process.
    pub(crate) fn latest_record(&mut self, id: ClientId, slot: u32) -> u64 {
        let event = self
            .rings(id)
            .ok()
            .and_then(|rings| rings.events.get(&slot));
        let Some(event) = event else {
            return 0;
        };
        match event.shared {
            Some(shared) => self.shared.latest(shared),
            None => event.latest,
        }
    }

    /// Publishes to all holders that a record has occurred.
    pub(crate) fn shared_happened(&mut self, id: SharedId, number: u64, at: Time) {
        let Some(event) = self.shared.events.get_mut(&id) else {
            return;
        };
        if number > event.happened.0 {
            event.happened = (number, at);
        }
        for (client, slot) in event.holders.clone() {
            if let Ok(rings) = self.rings(client) {
                rings.event_occurred(slot, None, number, at);
                rings.has_news = true;
            }
        }
    }

    /// Removes a client's hold on an event in one slot, or in all if `slot` is `None`.
    pub(crate) fn leave_shared_event(&mut self, id: SharedId, client: ClientId, slot: Option<u32>) {
        let Some(event) = self.shared.events.get_mut(&id) else {
            return;
        };
        event
            .holders
            .retain(|(holder, at)| *holder != client || slot.is_some_and(|slot| slot != *at));
        if slot.is_none() {
            // The client is gone: no process may wait for effects it still owed.
            let _written = rustix::io::pwrite(&event.page, &(u64::MAX >> 1).to_ne_bytes(), 0);
        }
        if event.holders.is_empty() {
            let (machine_event, key) = (event.id, event.key);
            self.machine.destroy_event(machine_event);
            self.shared.by_key.remove(&key);
            self.shared.events.remove(&id);
        }
    }

    /// Removes a client that is gone from all events.
    pub(crate) fn leave_shared(&mut self, client: ClientId) {
        let its: Vec<_> = self
            .shared
            .events
            .iter()
            .filter(|(_, event)| event.holders.iter().any(|(holder, _)| *holder == client))
            .map(|(id, _)| *id)
            .collect();
        for id in its {
            self.leave_shared_event(id, client, None);
        }
    }
}
