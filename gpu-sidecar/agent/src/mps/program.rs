//! `gpu-sidecar mps`: the daemons without an agent, so that agents in containers can be replaced.
//!
//! The end of a container ends all its processes, and the end of a daemon destroys the contexts of all its clients. Where the
//! agent runs in a pod, the daemons run in another pod, which an upgrade of the agent leaves alone.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::daemon::{Daemons, Supervisor};
use crate::config::Config;
use crate::events::Events;
use crate::lock::{LOCK_SPAN, lock};
use crate::node::Node;
use crate::nvml::Nvml;
use crate::nvml::real::Library;
use crate::nvml::watch::{Change, Listener, Watcher};
use crate::run::{ALIVE_SPAN, RunError, make_run_directory};
use crate::state::{DeviceMemory, SlotKind};
use crate::stop::Stop;

/// File in the run directory which the running program locks.
const LOCK_FILE: &str = "mps.lock";

/// Keeps a daemon running for each slot shared by MPS, until SIGTERM or SIGINT, which stops the daemons too.
///
/// # Errors
/// Returns an error when another program keeps the daemons of this run directory, threads or file descriptors are exhausted, or
/// a thread of this one has ended unexpectedly.
pub(crate) fn run(config: Config) -> Result<(), RunError> {
    let directory = config.node.run_directory.clone();
    make_run_directory(&directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let lock = runtime.block_on(lock(&directory, LOCK_FILE, "gpu-sidecar mps", LOCK_SPAN))?;
    let outcome = runtime.block_on(keep(config));
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(lock);
    outcome
}

async fn keep(config: Config) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, daemons, watching) = start(config)?;
    let outcome = tokio::select! {
        _signal = terminate.recv() => Ok(()),
        _signal = interrupt.recv() => Ok(()),
        () = ended(&watching, &daemons) => Err(RunError::MpsEnded),
    };
    let is_requested = outcome.is_ok();
    let ending = tokio::task::spawn_blocking(move || {
        stop.set();
        let _panicked = watching.join();
        // Daemons left running after a failure are adopted by the next program.
        daemons.end(is_requested);
    });
    let _panicked = ending.await;
    outcome
}

/// Waits until a thread has ended that should run as long as the program.
async fn ended(watching: &JoinHandle<()>, daemons: &Daemons) {
    while !watching.is_finished() && !daemons.has_ended() {
        tokio::time::sleep(ALIVE_SPAN).await;
    }
}

fn start(config: Config) -> std::io::Result<(Arc<Stop>, Arc<Daemons>, JoinHandle<()>)> {
    let events = Arc::new(Events::default());
    let node = Arc::new(Node::default());
    let daemons = Arc::new(Daemons::new(
        config.clone(),
        Supervisor::Own,
        Arc::clone(&node),
        Arc::clone(&events),
        None,
    ));
    let watcher = Watcher::new(
        config,
        node,
        events,
        Arc::<DeviceMemory>::default(),
        listener(Arc::clone(&daemons)),
    );
    let stop = Arc::new(Stop::default());
    let watching = {
        let stop = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name("nvml".to_owned());
        builder.spawn(move || {
            watcher.run(&stop, |path| {
                let library = Library::open(path)?;
                Ok(Box::new(library) as Box<dyn Nvml>)
            });
        })?
    };
    Ok((stop, daemons, watching))
}

/// Returns a listener which forwards changes of slots to their daemons.
pub(crate) fn listener(daemons: Arc<Daemons>) -> Listener {
    Box::new(move |change| match change {
        Change::Added(slot) if slot.kind == SlotKind::Mps => daemons.add(&slot),
        Change::Added(_) | Change::Memory(..) => {}
        Change::Lost(slot, _) => daemons.pause(slot),
        Change::Back(slot) => daemons.resume(&slot),
        Change::Fault(slot) => daemons.check(slot),
    })
}
