//! `gpu-sidecar mps`: the daemons without an agent, so that agents can be exchanged in containers.
//!
//! The end of a container ends all its processes, and the end of a daemon ends the contexts of all its clients. Where the agent
//! is a pod, the daemons are in another, which an upgrade of agents leaves alone.

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

/// Locked by the program that runs; in the run directory.
const LOCK_FILE: &str = "mps.lock";

/// Keeps a daemon running for each slot that MPS shares, until SIGTERM or SIGINT, which ends the daemons too.
///
/// # Errors
/// Another keeps them in this run directory, or the kernel has no threads or descriptors left.
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
    let is_asked = outcome.is_ok();
    let ending = tokio::task::spawn_blocking(move || {
        stop.set();
        let _panicked = watching.join();
        // Those that a broken program leaves are taken over by the next.
        daemons.end(is_asked);
    });
    let _panicked = ending.await;
    outcome
}

/// Blocks until a thread has ended that is to run as long as the program.
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

/// Returns what brings changes of slots to their daemons.
pub(crate) fn listener(daemons: Arc<Daemons>) -> Listener {
    Box::new(move |change| match change {
        Change::Added(slot) if slot.kind == SlotKind::Mps => daemons.add(&slot),
        Change::Added(_) => {}
        Change::Lost(slot, _) => daemons.pause(slot),
        Change::Back(slot) => daemons.resume(&slot),
        Change::Fault(slot) => daemons.look(slot),
    })
}
