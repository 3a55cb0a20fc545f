//! The memory operations over a device in virtual time.

use std::sync::atomic::Ordering;

use preload_state::link::Terms;
use preload_state::memory::Kind;
use protocol::message::OnLoss;

use super::*;
use crate::cuda::{Address, Handle};
use crate::cuda::{Code, OUT_OF_MEMORY, SUCCESS};
use crate::fake::{CONTEXT, Fake, GRANULE};
use crate::outcome::Outcome;
use crate::platform::System as _;

mod allocation;
mod context;
mod ipc;
mod limit;
mod other;
mod pools;
mod query;

const MIB: u64 = 1 << 20;

/// Returns a process under a limit in granules, without an agent: it applies the whole limit to itself.
fn limited(granules: u64) -> &'static Fake {
    let fake = Fake::new();
    fake.default_orders.set(true);
    fake.process.set_limits(&Terms {
        on_loss: OnLoss::Open,
        visible_devices: String::new(),
        mps_pipe_directory: String::new(),
        active_thread_hundredths: 10_000,
        mps_memory_limit: 0,
        memory_limit: granules * GRANULE,
        context_residue: 0,
    });
    fake
}

/// Returns a process without a limit whose contexts occupy nothing by themselves.
fn unlimited() -> &'static Fake {
    limited(0)
}

/// A call of the driver that must not be made.
fn unreached<T>() -> Result<T, Code> {
    panic!("the driver's function is not called")
}

#[track_caller]
fn allocate(fake: &'static Fake, bytes: u64) -> Address {
    match alloc::alloc(fake, bytes, &unreached) {
        Outcome::Done(at) => at,
        other => panic!("{other:?}"),
    }
}

fn free_memory(fake: &'static Fake, at: Address) -> Outcome {
    free::free(fake, &|| panic!("the driver's function is not called"), at)
}

fn held(fake: &'static Fake, kind: Kind) -> u64 {
    super::limit::read(fake, |account| account.of(kind))
}

fn published(fake: &'static Fake) -> u64 {
    fake.facts.bytes_used.load(Ordering::Relaxed)
}
