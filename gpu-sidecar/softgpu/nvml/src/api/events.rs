//! Event sets.

use std::time::Duration;

use super::board::fixed;
use crate::answer::{Answer, Return, export};
use crate::border::Out;
use crate::events::{self, EventSet, KINDS, XID};
use crate::handle::{Handle, Thing};
use crate::layout::{Event, EventV1};
use crate::session::{self, with_gpu};

/// Which slice an Xid is of is not told.
const NO_INSTANCE: u32 = u32::MAX;

fn set_of(handle: Handle) -> Answer<u32> {
    match handle.thing()? {
        Thing::EventSet(number) => Ok(number),
        _ => Err(Return::INVALID_ARGUMENT),
    }
}

fn wait(set: Handle, milliseconds: u32) -> Answer<EventV1> {
    let set = session::with(|_| set_of(set))?;
    let xid = events::wait(set, Duration::from_millis(milliseconds.into()))?;
    Ok(EventV1 {
        device: Thing::Gpu(xid.gpu).into(),
        kind: XID,
        data: xid.number,
    })
}

export! {
    fn nvmlEventSetCreate(set: Out<Handle>) {
        session::with(|session| {
            if set.is_null() {
                return Err(Return::INVALID_ARGUMENT);
            }
            session.sets_made += 1;
            let number = session.sets_made;
            session.sets.insert(number, EventSet::default());
            set.put(Thing::EventSet(number).into())
        })
    }

    /// From now on the set gets what goes wrong with the GPU.
    fn nvmlDeviceRegisterEvents(device: Handle, kinds: u64, set: Handle) {
        with_gpu(device, |session, gpu| {
            if kinds & !KINDS != 0 {
                return Err(Return::NOT_SUPPORTED);
            }
            let set = session.sets.get_mut(&set_of(set)?);
            set.ok_or(Return::INVALID_ARGUMENT)?.register(gpu, kinds);
            Ok(())
        })?;
        session::with(|session| session.collect(set_of(set)?).map(|_| ()))
    }

    /// Xids; and, so that programs may register for them, errors of memory, of which none is told but as an Xid.
    fn nvmlDeviceGetSupportedEventTypes(device: Handle, kinds: Out<u64>) {
        fixed(device, kinds, KINDS)
    }

    fn nvmlEventSetWait(set: Handle, event: Out<EventV1>, milliseconds: u32) {
        if event.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        event.put(wait(set, milliseconds)?)
    }

    fn nvmlEventSetWait_v2(set: Handle, event: Out<Event>, milliseconds: u32) {
        if event.is_null() {
            return Err(Return::INVALID_ARGUMENT);
        }
        event.put(Event {
            first: wait(set, milliseconds)?,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        })
    }

    fn nvmlEventSetFree(set: Handle) {
        session::with(|session| {
            let removed = session.sets.remove(&set_of(set)?);
            removed.map(|_| ()).ok_or(Return::INVALID_ARGUMENT)
        })
    }
}
