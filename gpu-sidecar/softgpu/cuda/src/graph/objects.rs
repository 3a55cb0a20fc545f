//! User objects, which programs bind to the lifetime of graphs. When the last reference is dropped, the destructor is
//! called on a thread of its own, so that it may block.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::driver;
use crate::effects;
use crate::error::{Error, Result};
use crate::pointer::Out;
use crate::table::{Handle, Kind, Table};
use crate::work::HostFunction;

use super::nodes::Graph;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, the only supported flag.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over the caller's references.
const MOVE: u32 = 1;
/// Largest number of user objects of a process.
const OBJECTS_MAX: usize = 1 << 20;

/// Destructor of a user object; dropping it calls the destructor.
pub(super) struct Object {
    destroy: HostFunction,
    data: usize,
}

impl Drop for Object {
    fn drop(&mut self) {
        let (destroy, data) = (self.destroy, self.data);
        effects::start("softgpu-destructor", move || {
            destroy(std::ptr::with_exposed_provenance_mut(data));
        });
    }
}

/// A user object with references held by the program.
pub(crate) struct UserObject {
    references: u64,
    object: Arc<Object>,
}

impl Kind for UserObject {
    const NUMBER: u64 = 21;
}

/// References of a graph to a user object.
#[derive(Clone)]
pub(crate) struct Held {
    handle: Handle<UserObject>,
    references: u64,
    pub(super) object: Arc<Object>,
}

/// Locked briefly, by threads that may hold the state.
static OBJECTS: Mutex<Table<UserObject>> = Mutex::new(Table::new(OBJECTS_MAX));

fn objects() -> MutexGuard<'static, Table<UserObject>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops references held by the program.
fn take(handle: Handle<UserObject>, count: u64) -> Result {
    let mut objects = objects();
    let there = objects.get_mut(handle).ok_or(Error::INVALID_VALUE)?;
    there.references = there
        .references
        .checked_sub(count)
        .ok_or(Error::INVALID_VALUE)?;
    if there.references == 0 {
        objects.remove(handle);
    }
    Ok(())
}

fn count_of(count: u32) -> Result<u64> {
    if count == 0 || i32::try_from(count).is_err() {
        return Err(Error::INVALID_VALUE);
    }
    Ok(count.into())
}

/// Implements `cuUserObjectCreate`: creates a user object with references held by the caller.
pub(crate) fn create(
    out: Out<Handle<UserObject>>,
    data: *mut c_void,
    destroy: Option<HostFunction>,
    references: u32,
    flags: u32,
) -> Result {
    driver()?;
    let destroy = destroy.ok_or(Error::INVALID_VALUE)?;
    let references = count_of(references)?;
    if out.is_null() || flags != NO_DESTRUCTOR_SYNC {
        return Err(Error::INVALID_VALUE);
    }
    let object = Arc::new(Object {
        destroy,
        data: data.expose_provenance(),
    });
    let referred = UserObject { references, object };
    out.put(objects().insert(referred).ok_or(Error::OUT_OF_MEMORY)?)
}

/// Implements `cuUserObjectRetain`: adds references held by the caller.
pub(crate) fn retain(object: Handle<UserObject>, count: u32) -> Result {
    driver()?;
    let count = count_of(count)?;
    let mut objects = objects();
    let there = objects.get_mut(object).ok_or(Error::INVALID_VALUE)?;
    there.references += count;
    Ok(())
}

/// Implements `cuUserObjectRelease`: drops references held by the caller.
pub(crate) fn release(object: Handle<UserObject>, count: u32) -> Result {
    driver()?;
    take(object, count_of(count)?)
}

/// Implements `cuGraphRetainUserObject`: adds references held by a graph.
pub(crate) fn graph_retain(
    graph: Handle<Graph>,
    handle: Handle<UserObject>,
    count: u32,
    flags: u32,
) -> Result {
    let driver = driver()?;
    let count = count_of(count)?;
    if flags & !MOVE != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    let graph = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    let object = {
        let objects = objects();
        let there = objects.get(handle).ok_or(Error::INVALID_VALUE)?;
        Arc::clone(&there.object)
    };
    if flags & MOVE != 0 {
        take(handle, count)?;
    }
    match graph.objects.iter_mut().find(|held| held.handle == handle) {
        Some(held) => held.references += count,
        None => graph.objects.push(Held {
            handle,
            references: count,
            object,
        }),
    }
    Ok(())
}

/// Implements `cuGraphReleaseUserObject`: drops references held by a graph.
pub(crate) fn graph_release(
    graph: Handle<Graph>,
    handle: Handle<UserObject>,
    count: u32,
) -> Result {
    let driver = driver()?;
    let count = count_of(count)?;
    let mut state = driver.state();
    let graph = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    let at = graph.objects.iter().position(|held| held.handle == handle);
    let at = at.ok_or(Error::INVALID_VALUE)?;
    let held = &mut graph.objects[at];
    held.references = held
        .references
        .checked_sub(count)
        .ok_or(Error::INVALID_VALUE)?;
    if held.references == 0 {
        graph.objects.swap_remove(at);
    }
    Ok(())
}
