//! The server process: settings, port, load, connections and drain.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Parser as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::http;
use crate::models::Model;
use crate::server::Server;
use crate::settings::{Arguments, Settings, settings};

/// Time for the workers to free device memory after the last connection has ended.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Runs the server until SIGTERM or SIGINT with settings from the environment alone, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    with(Arguments::default())
}

/// Runs the server until SIGTERM or SIGINT and returns the exit code. The first argument is the program's name.
#[must_use]
pub fn main_with_arguments(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Arguments::try_parse_from(arguments) {
        Ok(arguments) if arguments.list_models => list_models(),
        Ok(arguments) => with(arguments),
        Err(error) => {
            // A closed standard error is ignored.
            let _printed = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

fn with(arguments: Arguments) -> ExitCode {
    let settings = match settings(arguments, |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(why) => return fail(&why, 2),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}"), 1),
    };
    let code = runtime.block_on(run(settings));
    // Does not wait for a checksum in progress.
    runtime.shutdown_background();
    code
}

fn list_models() -> ExitCode {
    let mut table = format!(
        "{:<14} {:>11} {:>8} {:>8}  {:<17} interference\n",
        "model", "weights MiB", "kernels", "ms", "law"
    );
    for model in Model::names().filter_map(Model::named) {
        let (law, parameter) = match model.law {
            kernels::Law::Linear => ("linear", 0),
            kernels::Law::Saturating { at_millionths } => ("saturating", at_millionths),
            kernels::Law::Knee { at_millionths } => ("knee", at_millionths),
            kernels::Law::Amdahl { serial_millionths } => ("amdahl", serial_millionths),
            kernels::Law::Power {
                exponent_millionths,
            } => ("power", exponent_millionths),
        };
        let mebibytes = model.weights_bytes / (1 << 20);
        let ms = Duration::from_nanos(model.kernels_ns()).as_secs_f64() * 1e3;
        let law = format!("{law} {}", f64::from(parameter) / 1e6);
        let interference = f64::from(model.interference_millionths) / 1e6;
        // Writing to a string cannot fail.
        let _written = writeln!(
            table,
            "{:<14} {mebibytes:>11} {:>8} {ms:>8.3}  {law:<17} {interference}",
            model.name,
            model.kernel_count(),
        );
    }
    match std::io::stdout().write_all(table.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The signals that stop the server.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    async fn recv(&mut self) {
        tokio::select! {
            _signal = self.terminate.recv() => {}
            _signal = self.interrupt.recv() => {}
        }
    }
}

async fn run(settings: Settings) -> ExitCode {
    let (bind, port, drain) = (settings.bind, settings.port, settings.drain);
    let listener = match TcpListener::bind((bind, port)).await {
        Ok(listener) => listener,
        Err(error) => return fail(&format!("cannot listen on {bind}:{port}: {error}"), 1),
    };
    if port == 0
        && let Ok(address) = listener.local_addr()
    {
        // Reports the chosen port; a closed standard output does not prevent serving.
        let _written = writeln!(std::io::stdout(), "listening on {address}");
    }
    let (Ok(terminate), Ok(interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return fail("cannot listen for signals", 1);
    };
    let mut signals = ShutdownSignals {
        terminate,
        interrupt,
    };
    let server = Arc::new(Server::new(settings));
    let (loaded, mut is_loaded) = oneshot::channel();
    let worker = match start(&server, loaded) {
        Ok(worker) => worker,
        Err(error) => return fail(&format!("cannot start a thread: {error}"), 1),
    };

    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut is_loading = true;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            loaded = &mut is_loaded, if is_loading => {
                is_loading = false;
                match loaded.unwrap_or(Err(Failure::Worker)) {
                    Ok(()) => continue,
                    Err(failure) => return fail(&format!("cannot load the model: {failure}"), 1),
                }
            }
            // Forget connections that have ended.
            Some(_ended) = connections.join_next() => continue,
            () = signals.recv() => break,
        };
        if let Ok((stream, _)) = accepted {
            connections.spawn(connection(stream, Arc::clone(&server), stopped.clone()));
        }
    }
    drop(listener);
    drop(stop);
    server.queue.hurry();
    let all = async { while connections.join_next().await.is_some() {} };
    let is_drained = tokio::time::timeout(drain, all).await.is_ok();
    server.queue.close();
    if !is_drained {
        return fail(
            &format!("requests still running {drain:?} after the signal are aborted"),
            0,
        );
    }
    // All clients are served; a worker that hangs in the driver is abandoned.
    let begin = Instant::now();
    while !worker.is_finished() && begin.elapsed() < CLOSE_MAX {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ExitCode::SUCCESS
}

fn start(
    server: &Arc<Server>,
    loaded: oneshot::Sender<Result<(), Failure>>,
) -> std::io::Result<JoinHandle<Result<(), Failure>>> {
    let server = Arc::clone(server);
    std::thread::Builder::new()
        .name("device".to_owned())
        .spawn(move || {
            // The receiver is dropped only when the server has ended.
            server.work(|result| drop(loaded.send(result)))
        })
}

async fn connection(stream: TcpStream, server: Arc<Server>, mut stopped: watch::Receiver<()>) {
    let service = service_fn(move |request| http::answer(Arc::clone(&server), request));
    // Streamed lines are small, and each has to be sent at once.
    let _set = stream.set_nodelay(true);
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Connection errors affect only their client.
    tokio::select! {
        _ended = connection.as_mut() => {}
        // The sender is dropped when the server stops.
        _stopped = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ended = connection.await;
        }
    }
}

fn fail(why: &str, code: u8) -> ExitCode {
    // A closed standard error is ignored.
    let _written = writeln!(std::io::stderr(), "model-server: {why}");
    ExitCode::from(code)
}
