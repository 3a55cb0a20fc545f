//! User objects: what a program binds to the life of its graphs. When nobody refers to one any more, its function is called
//! by a thread of its own, so that it may wait for whatever it likes.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::driver;
use crate::effects;
use crate::error::{Error, Result};
use crate::pointer::Out;
use crate::table::{Handle, Kind, Table};
use crate::work::HostFunction;

use super::nodes::Graph;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`
const MOVE: u32 = 1;
/// Objects of a process, at most.
const MANY: usize = 1 << 20;

/// A user object. Dropping it has its function called.
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

/// A user object to which the program itself refers.
pub(crate) struct Referred {
    references: u64,
    object: Arc<Object>,
}

impl Kind for Referred {
    const NUMBER: u64 = 21;
}

/// A user object to which a graph refers.
#[derive(Clone)]
pub(crate) struct Held {
    handle: Handle<Referred>,
    references: u64,
    pub(super) object: Arc<Object>,
}

/// It is locked for a moment each time, by whoever holds the state or nobody.
static OBJECTS: Mutex<Table<Referred>> = Mutex::new(Table::new(MANY));

fn objects() -> MutexGuard<'static, Table<Referred>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes references away from the program.
fn take(handle: Handle<Referred>, count: u64) -> Result {
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

/// `cuUserObjectCreate`
pub(crate) fn create(
    out: Out<Handle<Referred>>,
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
    let referred = Referred { references, object };
    out.put(objects().insert(referred).ok_or(Error::OUT_OF_MEMORY)?)
}

/// `cuUserObjectRetain`
pub(crate) fn retain(object: Handle<Referred>, count: u32) -> Result {
    driver()?;
    let count = count_of(count)?;
    let mut objects = objects();
    let there = objects.get_mut(object).ok_or(Error::INVALID_VALUE)?;
    there.references += count;
    Ok(())
}

/// `cuUserObjectRelease`
pub(crate) fn release(object: Handle<Referred>, count: u32) -> Result {
    driver()?;
    take(object, count_of(count)?)
}

/// `cuGraphRetainUserObject`
pub(crate) fn graph_retain(
    graph: Handle<Graph>,
    handle: Handle<Referred>,
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

/// `cuGraphReleaseUserObject`
pub(crate) fn graph_release(graph: Handle<Graph>, handle: Handle<Referred>, count: u32) -> Result {
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
