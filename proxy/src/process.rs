//! Process scaffolding shared by the programs: the runtime, servers with a common shutdown, and termination signals.

use std::io;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::task::TaskTracker;

use crate::connection::{Handler, Shutdown, accept};
use crate::limits::Limits;
use crate::tls::Tls;
use crate::upstream::Upstream;
use crate::workers;

/// Interval at which idle connections to an upstream are checked.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Prints to standard output. Returns exit code 0, or 1 if the write fails.
#[must_use]
pub fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes error messages to standard error, each prefixed with the program's name, for errors before the log is set up.
/// Returns `code` as the process's exit code.
pub fn complain(program: &str, code: u8, lines: impl IntoIterator<Item = String>) -> ExitCode {
    let mut stderr = io::stderr().lock();
    for line in lines {
        // A failure to write to standard error cannot be reported anywhere.
        let _written = writeln!(stderr, "{program}: {line}");
    }
    ExitCode::from(code)
}

/// Creates a runtime with a number of worker threads that fits the container's CPU quota.
///
/// # Errors
/// Returns an error if the system provides no more threads or file descriptors.
pub fn runtime() -> io::Result<Runtime> {
    let workers = workers::count();
    if workers == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
    }
}

/// Closes connections to an upstream that have been idle for too long, once per second. Never returns.
pub async fn sweep(upstream: Arc<Upstream>) {
    let mut tick = tokio::time::interval(SWEEP_PERIOD);
    loop {
        tick.tick().await;
        upstream.sweep();
    }
}

/// Context shared by all servers of a process.
#[derive(Debug)]
pub struct Servers {
    /// Resource limits of one client.
    pub limits: Limits,
    /// Signal that shuts down all servers.
    pub shutdown: Arc<Shutdown>,
    /// Tracker of the open connections.
    pub connections: TaskTracker,
}

impl Servers {
    /// Serves connections of `listener` in the background, over TLS if `tls` is given.
    pub fn serve<H: Handler>(
        &self,
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        handler: &Arc<H>,
    ) {
        tokio::spawn(accept(
            listener,
            tls,
            self.limits,
            Arc::clone(handler),
            Arc::clone(&self.shutdown),
            self.connections.clone(),
        ));
    }
}

/// Receiver of the signals that terminate the process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for SIGTERM and SIGINT.
    ///
    /// # Errors
    /// Returns an error if the system refuses to install them.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next SIGTERM or SIGINT.
    pub async fn next(&mut self) {
        tokio::select! {
            _signal = self.terminate.recv() => {}
            _signal = self.interrupt.recv() => {}
        }
    }
}
