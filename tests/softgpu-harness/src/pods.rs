//! Pods under leases: a queue-proxy and a model-server of each, with a folder of the agent's.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use testing::until;

use crate::node::{Node, preload};

/// Objective of a pod unless it has one of its own.
const OBJECTIVE: Duration = Duration::from_millis(500);
/// Longest time until an answer.
const ANSWER_MAX: Duration = Duration::from_secs(25);
/// Requests that are sent at a time to a pod which runs one: so many that some wait although their clients are slow on a machine that does much else. Without one that
/// waits the slot is free for work in the background.
const CLIENTS: u64 = 8;
/// Settings of every model: one of 4 MiB of weights, whose answers are checked. A unit of input takes a millisecond.
const MODEL: [(&str, &str); 6] = [
    ("MODEL_NAME", "resnet-152"),
    ("MODEL_TOUCH", "order"),
    ("MODEL_VERIFY", "true"),
    ("MODEL_CHECK", "all"),
    ("MODEL_INPUT_NS", "1000000"),
    ("WEIR_BYTES_SCALE", "64"),
];

/// A process that is killed when dropped.
#[derive(Debug)]
pub struct Killed(Child);

impl Killed {
    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Properties of a pod.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Name of its folder.
    pub name: &'static str,
    /// Name of its function.
    pub function: &'static str,
    /// Kubernetes' UID; empty: none is known.
    pub uid: &'static str,
    /// Name of its slot; empty: any.
    pub slot: &'static str,
    /// Address at which its queue-proxy listens, on port 8012.
    pub ip: &'static str,
    /// Number of requests that its queue-proxy runs at a time.
    pub concurrency: u32,
    /// Objective of its requests.
    pub objective: Duration,
    /// Whether it computes beside other pods of its slot.
    pub is_shared: bool,
    /// Longest time of its kernels.
    pub piece: &'static str,
}

impl About {
    /// Returns a pod of a function of its own, which runs one request at a time, each in a single kernel.
    pub const fn of(name: &'static str, ip: &'static str) -> Self {
        Self {
            name,
            function: name,
            uid: "",
            slot: "",
            ip,
            concurrency: 1,
            objective: OBJECTIVE,
            is_shared: false,
            piece: "600s",
        }
    }

    /// Creates the pod's folder, and waits until the agent serves it.
    pub fn publish(&self, node: &Node) {
        let mut about = format!("namespace = \"demo\"\nfunction = \"{}\"\n", self.function);
        for (key, value) in [("uid", self.uid), ("slot", self.slot)] {
            if !value.is_empty() {
                about += &format!("{key} = \"{value}\"\n");
            }
        }
        let isolation = match self.is_shared {
            true => "weir.dev/isolation=\"shared\"\nweir.dev/gpu-memory=\"16Mi\"\n",
            false => "weir.dev/isolation=\"tenant\"\n",
        };
        let objective = self.objective.as_millis();
        let annotations = format!("{isolation}weir.dev/slo=\"{objective}ms\"\n");
        node.publish(self.name, &annotations, &about);
        until("the pod is served", || {
            (node.instance(self.name)["id"] == self.name).then_some(())
        });
    }

    /// Starts its queue-proxy before a server on this port, and waits until it listens.
    pub fn start_queue(&self, node: &Node, port: u16) -> Killed {
        let folder = node.file("run/pods").join(self.name);
        queue_proxy(self, port, &folder.join("lease/queue.sock"), 20)
    }

    /// Returns the address at which its queue-proxy listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip.parse().unwrap(), 8012)
    }
}

/// A pod with its two programs; `None`: killed.
#[derive(Debug)]
pub struct Pod {
    pub about: About,
    pub model: Option<Killed>,
    pub queue: Option<Killed>,
    /// Address of the model-server itself.
    pub target: SocketAddr,
}

fn weir(program: &str) -> Command {
    let mut command = Command::new(crate::weir());
    let parent = std::process::id().to_string();
    command.args(["child", program, "--parent", &parent, "--"]);
    command
}

impl Pod {
    /// Blocks until a new pod's programs run and its model is loaded, and returns it.
    pub fn start(node: &Node, about: About) -> Self {
        let pod = Self::begin(node, about);
        pod.loads();
        pod
    }

    /// Starts the programs of a pod, whose model is not loaded yet.
    pub fn begin(node: &Node, about: About) -> Self {
        about.publish(node);
        let mut pod = Self {
            about,
            model: None,
            queue: None,
            target: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        pod.begin_model(node);
        pod.start_queue(node);
        pod
    }

    /// Blocks until a new model-server has loaded the model.
    pub fn start_model(&mut self, node: &Node) {
        self.begin_model(node);
        self.loads();
    }

    fn begin_model(&mut self, node: &Node) {
        let mut command = weir("model-server");
        node.softgpu.is_for(&mut command);
        preload(&mut command, &node.gate(self.about.name));
        let port = self.target.port().to_string();
        command.env("PORT", port).envs(MODEL);
        command.env("MODEL_PIECE", self.about.piece);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        if self.target.port() == 0 {
            // It prints the port that it has found.
            let mut line = String::new();
            let output = child.stdout.take().unwrap();
            BufReader::new(output).read_line(&mut line).unwrap();
            self.target = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        }
        self.model = Some(Killed(child));
    }

    /// Blocks until the model is loaded.
    pub fn loads(&self) {
        until("the model is loaded", || {
            (exchange(self.target, "GET", "/ready", "").0 == 200).then_some(())
        });
    }

    /// Blocks until a new queue-proxy listens.
    pub fn start_queue(&mut self, node: &Node) {
        self.queue = Some(self.about.start_queue(node, self.target.port()));
    }

    /// Returns the address at which its queue-proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.about.address()
    }

    /// Blocks until this many requests wait in the pod's queue.
    pub fn waits_for(&self, requests: u32) {
        let metrics = SocketAddr::new(self.address().ip(), 9091);
        until("the requests wait", || {
            let (_, text) = exchange(metrics, "GET", "/metrics", "");
            let mut lines = text.lines();
            let gauge = lines.find(|line| line.starts_with("weir_requests_waiting"))?;
            let waiting = gauge.rsplit(' ').next()?;
            (waiting.parse() == Ok(f64::from(requests))).then_some(())
        });
    }
}

/// Starts the queue-proxy of a pod, and waits until it listens.
pub fn queue_proxy(about: &About, port: u16, socket: &Path, timeout_seconds: u32) -> Killed {
    let About { name, ip, .. } = about;
    let mut command = weir("queue-proxy");
    command.env("WEIR_QUEUE_SOCKET", socket);
    let concurrency = about.concurrency.to_string();
    let timeout_seconds = timeout_seconds.to_string();
    let port = port.to_string();
    let objective = format!("{}ms", about.objective.as_millis());
    for (name, value) in [
        ("SERVING_NAMESPACE", "demo"),
        ("SERVING_CONFIGURATION", name),
        ("SERVING_REVISION", name),
        ("QUEUE_SERVING_PORT", "8012"),
        ("QUEUE_SERVING_TLS_PORT", "8112"),
        ("CONTAINER_CONCURRENCY", &*concurrency),
        ("SERVING_POD", name),
        ("SERVING_POD_IP", ip),
        ("SERVING_LOGGING_CONFIG", ""),
        ("SERVING_LOGGING_LEVEL", "warn"),
        ("WEIR_PODINFO", "/nonexistent"),
        ("WEIR_BIND", ip),
        ("WEIR_SLO", &*objective),
        ("REVISION_TIMEOUT_SECONDS", &*timeout_seconds),
        ("USER_PORT", &*port),
    ] {
        command.env(name, value);
    }
    let queue = Killed(command.spawn().unwrap());
    let address = about.address();
    until("the queue-proxy listens", || {
        TcpStream::connect(address).is_ok().then_some(())
    });
    queue
}

/// Sends a request, and returns status and body of the answer; 0 if there is none.
pub fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    exchange_within(address, ANSWER_MAX, method, path, body)
}

/// Sends a request as [`exchange`] does, and waits for the answer for a time.
pub fn exchange_within(
    address: SocketAddr,
    at_most: Duration,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    exchange_with(address, at_most, method, path, "", body)
}

/// Sends a request with these additional header lines, each with its end, as [`exchange_within`] does.
fn exchange_with(
    address: SocketAddr,
    at_most: Duration,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let sent = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(at_most))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = sent().unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or(0), body.to_owned())
}

/// Sends a request to a pod. Returns the status, which is 0 too if the answer is not that of the model.
pub fn infer(address: SocketAddr, seed: u64) -> u16 {
    infer_for(address, 1, seed)
}

/// Sends a request to a pod whose kernel takes these milliseconds. Returns the status as [`infer`].
pub fn infer_for(address: SocketAddr, ms: u64, seed: u64) -> u16 {
    let body = format!(r#"{{"input":{ms},"output":1,"seed":{seed}}}"#);
    let (status, body) = exchange(address, "POST", "/infer", &body);
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    if status == 200 && answer["right"] != true {
        return 0;
    }
    status
}

/// Sends a request to a pod with this `traceparent` of W3C Trace Context, and returns the status.
pub fn infer_traced(address: SocketAddr, traceparent: &str, seed: u64) -> u16 {
    let headers = format!("traceparent: {traceparent}\r\n");
    let body = format!(r#"{{"input":1,"output":1,"seed":{seed}}}"#);
    exchange_with(address, ANSWER_MAX, "POST", "/infer", &headers, &body).0
}

/// Ends clients of a test when dropped, so that one which fails does not wait for them for ever.
#[derive(Debug)]
pub struct StopGuard<'a>(pub &'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests to a pod while `action` runs, which begins once twenty were answered. Returns its result, and the number of requests that were answered.
pub fn while_busy<T>(address: SocketAddr, action: impl FnOnce() -> T) -> (T, usize) {
    let is_over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let result = thread::scope(|scope| {
        let guard = StopGuard(&is_over);
        for client in 0..CLIENTS {
            let (is_over, answered) = (&is_over, &answered);
            scope.spawn(move || {
                let mut seed = client * 1_000;
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(infer(address, seed), 200, "request {seed}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    seed += 1;
                }
            });
        }
        until("the slot is busy", || {
            (answered.load(Ordering::Relaxed) > 20).then_some(())
        });
        let result = action();
        drop(guard);
        result
    });
    (result, answered.into_inner())
}
