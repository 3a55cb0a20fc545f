//! What each program around these sockets is: a runtime, servers that share a shutdown, signals that end it.

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

/// Idle connections to an upstream are looked through this often.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Prints to standard output. Exit code 1 if it takes nothing.
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

/// Writes what is wrong on standard error, before or without a log, each line behind the program's name. Returns `code`
/// as the process's exit code.
pub fn complain(program: &str, code: u8, lines: impl IntoIterator<Item = String>) -> ExitCode {
    let mut stderr = io::stderr().lock();
    for line in lines {
        // There is no other place to report that this fails.
        let _written = writeln!(stderr, "{program}: {line}");
    }
    ExitCode::from(code)
}

/// Returns a runtime with as many threads as the container's CPU quota pays for.
///
/// # Errors
/// The kernel gives no threads or descriptors.
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

/// Closes connections to an upstream that have been idle for too long, for ever.
pub async fn sweep(upstream: Arc<Upstream>) {
    let mut tick = tokio::time::interval(SWEEP_PERIOD);
    loop {
        tick.tick().await;
        upstream.sweep();
    }
}

/// What all servers of a process share.
#[derive(Debug)]
pub struct Servers {
    /// What one client may take.
    pub limits: Limits,
    /// Ends all of them.
    pub shutdown: Arc<Shutdown>,
    /// Connections that are open.
    pub connections: TaskTracker,
}

impl Servers {
    /// Serves connections of `listener` in the background, over TLS where it is given.
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

/// The signals that end a process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to take SIGTERM and SIGINT.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one of either.
    pub async fn next(&mut self) {
        tokio::select! {
            _signal = self.terminate.recv() => {}
            _signal = self.interrupt.recv() => {}
        }
    }
}
