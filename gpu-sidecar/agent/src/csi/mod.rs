//! The CSI driver `csi.weir.dev` for inline volumes: the kubelet requests each pod's volume before it starts a container, and a
//! refusal becomes an event of the kubelet.
//!
//! Two sockets below the kubelet's directory, both for root alone: `plugins_registry/csi.weir.dev-reg.sock`, through which the
//! kubelet discovers the driver, and `plugins/csi.weir.dev/csi.sock`, on which the driver serves requests. No sidecar
//! containers are needed.

mod authority;
pub(crate) mod helper;
mod kubelet;
mod messages;
mod mounts;
mod volume;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use rustix::fs::{CWD, Mode, chmodat};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use authority::Localhost;
pub(crate) use kubelet::Kubelet;
use messages::{
    BoolValue, DriverInfo, Empty, NodeInfo, PluginInfo, ProbeResponse, Publish, RegistrationStatus,
    Unpublish,
};
pub(crate) use volume::Volumes;

/// Name of the driver.
pub(crate) const DRIVER: &str = "csi.weir.dev";
/// Maximum number of connections of one socket.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of concurrent requests of one connection.
const STREAMS_MAX: u32 = 64;
/// Maximum number of volumes processed at a time, on the threads that scrapes and API queries use as well; more wait.
const VOLUMES_AT_ONCE: usize = 8;
/// Interval and timeout of the pings on a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time for requests in flight to finish at shutdown.
const DRAIN_SPAN: Duration = Duration::from_secs(5);
/// Interval of the searches for remains of deleted pods.
const SWEEP_PERIOD: Duration = Duration::from_secs(30);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Paths of the two sockets, as this process reaches them.
#[derive(Debug, Clone)]
struct Sockets {
    registration: PathBuf,
    driver: PathBuf,
}

/// State of the driver's services.
#[derive(Debug)]
struct Driver {
    volumes: Arc<Volumes>,
    endpoint: PathBuf,
    node: String,
    places: Arc<Semaphore>,
}

/// Serves both sockets until `cancel` is cancelled, then removes them.
///
/// # Errors
/// Returns an error when a socket or the shared-memory folder cannot be created.
pub(crate) async fn serve(
    kubelet: &Kubelet,
    node: String,
    volumes: Arc<Volumes>,
    cancel: CancellationToken,
) -> io::Result<()> {
    let registration = kubelet
        .directory
        .join("plugins_registry")
        .join(format!("{DRIVER}-reg.sock"));
    let endpoint = kubelet
        .directory
        .join("plugins")
        .join(DRIVER)
        .join("csi.sock");
    let sockets = Sockets {
        registration: kubelet.local_path(&registration),
        driver: kubelet.local_path(&endpoint),
    };
    volumes.open_shared_memory()?;
    let driver = Arc::new(Driver {
        volumes,
        endpoint,
        node,
        places: Arc::new(Semaphore::new(VOLUMES_AT_ONCE)),
    });
    // The kubelet connects to the driver's socket once it finds the registration socket, so the driver's socket is created
    // first.
    let listeners = [listen(&sockets.driver)?, listen(&sockets.registration)?];
    tracing::info!(socket = %sockets.driver.display(), "serving CSI volumes");
    let [driver_served, registration_served] =
        listeners.map(|listener| accept(listener, Arc::clone(&driver), cancel.clone()));
    let swept = async {
        let mut tick = tokio::time::interval(SWEEP_PERIOD);
        loop {
            tick.tick().await;
            let volumes = Arc::clone(&driver.volumes);
            let _panicked = tokio::task::spawn_blocking(move || volumes.sweep()).await;
        }
    };
    tokio::select! {
        _ended = async { tokio::join!(driver_served, registration_served) } => {}
        () = swept => {}
    }
    for socket in [&sockets.registration, &sockets.driver] {
        // Otherwise the kubelet would call a stopped driver.
        let _gone = std::fs::remove_file(socket);
    }
    Ok(())
}

/// Creates a folder and its missing parents.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(folder)
}

/// Listens at a path for root alone, replacing the socket of an earlier agent.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    make_folder(folder).map_err(named)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    let owner = Mode::from_raw_mode(0o600);
    chmodat(CWD, path, owner, rustix::fs::AtFlags::empty()).map_err(|errno| named(errno.into()))?;
    Ok(listener)
}

/// Accepts and serves connections until `cancel` is cancelled, then drains them for [`DRAIN_SPAN`].
async fn accept(listener: UnixListener, driver: Arc<Driver>, cancel: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = cancel.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of the kubelet");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (driver, cancel) = (Arc::clone(&driver), cancel.clone());
        tasks.spawn(async move {
            let _place = place;
            let service = service_fn(move |request| {
                let driver = Arc::clone(&driver);
                async move { Ok::<_, Infallible>(driver.answer(request).await) }
            });
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .max_concurrent_streams(STREAMS_MAX);
            let mut connection = std::pin::pin!(
                builder.serve_connection(TokioIo::new(Localhost::new(stream)), service)
            );
            tokio::select! {
                // A protocol error ends the connection.
                _ended = connection.as_mut() => return,
                () = cancel.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _late = tokio::time::timeout(DRAIN_SPAN, connection).await;
        });
    }
    tasks.close();
    let _left = tokio::time::timeout(DRAIN_SPAN, tasks.wait()).await;
}

impl Driver {
    /// Routes a request to its gRPC method.
    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<Body> {
        match request.uri().path() {
            "/pluginregistration.Registration/GetInfo" => {
                let info = PluginInfo {
                    kind: "CSIPlugin".to_owned(),
                    name: DRIVER.to_owned(),
                    endpoint: self.endpoint.display().to_string(),
                    supported_versions: vec!["1.0.0".to_owned()],
                };
                unary(request, |_: Empty| async { Ok(info) }).await
            }
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                unary(request, |status: RegistrationStatus| async move {
                    if status.plugin_registered {
                        tracing::info!("the kubelet has registered {DRIVER}");
                    } else {
                        tracing::error!(error = status.error, "the kubelet has rejected {DRIVER}");
                    }
                    Ok(Empty {})
                })
                .await
            }
            "/csi.v1.Identity/GetPluginInfo" => {
                let info = DriverInfo {
                    name: DRIVER.to_owned(),
                    vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                unary(request, |_: Empty| async { Ok(info) }).await
            }
            // No controller service and no topology.
            "/csi.v1.Identity/GetPluginCapabilities" | "/csi.v1.Node/NodeGetCapabilities" => {
                unary(request, |_: Empty| async { Ok(Empty {}) }).await
            }
            "/csi.v1.Identity/Probe" => {
                let ready = ProbeResponse {
                    ready: Some(BoolValue { value: true }),
                };
                unary(request, move |_: Empty| async move { Ok(ready) }).await
            }
            "/csi.v1.Node/NodeGetInfo" => {
                let info = NodeInfo {
                    node_id: self.node.clone(),
                    max_volumes_per_node: 0,
                };
                unary(request, |_: Empty| async { Ok(info) }).await
            }
            "/csi.v1.Node/NodePublishVolume" => {
                let (volumes, places) = (Arc::clone(&self.volumes), Arc::clone(&self.places));
                unary(request, |message: Publish| {
                    blocking(places, move || {
                        let (id, target) = (&message.volume_id, &message.target_path);
                        volumes
                            .publish(id, target, &message.volume_context)
                            .inspect_err(|why| {
                                tracing::warn!(target, why = why.message(), "refused a volume");
                            })
                    })
                })
                .await
            }
            "/csi.v1.Node/NodeUnpublishVolume" => {
                let (volumes, places) = (Arc::clone(&self.volumes), Arc::clone(&self.places));
                unary(request, |message: Unpublish| {
                    blocking(places, move || {
                        volumes.unpublish(&message.volume_id, &message.target_path)
                    })
                })
                .await
            }
            other => Status::unimplemented(format!(
                "{other}: not implemented by a driver of inline volumes"
            ))
            .into_http(),
        }
    }
}

/// Serves a unary gRPC call.
async fn unary<Q, A, F>(
    request: http::Request<Incoming>,
    answer: impl FnOnce(Q) -> F + Send + Clone + 'static,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Q>| {
        let answered = answer.clone()(request.into_inner());
        async move { answered.await.map(Response::new) }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default());
    grpc.unary(service, request).await
}

/// Runs blocking work on another thread, at most [`VOLUMES_AT_ONCE`] at a time.
async fn blocking(
    places: Arc<Semaphore>,
    work: impl FnOnce() -> Result<(), Status> + Send + 'static,
) -> Result<Empty, Status> {
    let place = places.acquire_owned().await;
    // The work continues when the kubelet disconnects meanwhile.
    let work = move || {
        let _place = place;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map(|()| Empty {}),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}
