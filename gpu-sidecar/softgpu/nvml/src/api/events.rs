//! Event sets of a process.

use std::time::Duration;

use super::board::fixed;
use crate::answer::{Answer, Return, export};
use crate::events::{self, EventSet, KINDS, XID};
use crate::handle::{Handle, Object};
use crate::layout::{Event, EventV1};
use crate::pointer::Out;
use crate::session::{self, with_gpu};

/// Instance id of an event, because an Xid carries no slice.
const NO_INSTANCE: u32 = u32::MAX;

fn set_of(handle: Handle) -> Answer<u32> {
    match handle.object()? {
        Object::EventSet(number) => Ok(number),
        _ => Err(Return::INVALID_ARGUMENT),
    }
}

fn wait(set: Handle, milliseconds: u32) -> Answer<EventV1> {
    let set = session::with(|_| set_of(set))?;
    let xid = events::wait(set, Duration::from_millis(milliseconds.into()))?;
    Ok(EventV1 {
        device: Object::Gpu(xid.gpu).into(),
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
            session.last_set += 1;
            let number = session.last_set;
            session.sets.insert(number, EventSet::default());
            set.put(Object::EventSet(number).into())
        })
    }

    /// Adds a GPU's events of the given kinds to the set.
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

    /// Returns Xids and, so that programs may register for them, memory errors, which never occur.
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
        let first = wait(set, milliseconds)?;
        event.put(Event {
            device: first.device.pointer(),
            eventType: first.kind,
            eventData: first.data,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
    }

    fn nvmlEventSetFree(set: Handle) {
        session::with(|session| {
            let removed = session.sets.remove(&set_of(set)?);
            removed.map(|_| ()).ok_or(Return::INVALID_ARGUMENT)
        })
    }
}
