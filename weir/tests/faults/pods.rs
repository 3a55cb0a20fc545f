//! The pods, and a kubelet which restarts ended programs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::checks::Checks;
use softgpu_harness::node::Node;
use softgpu_harness::programs::{built, ptx};
use softgpu_harness::soft_gpu_dir::is_gone;
use testing::until;

/// A pod and its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pod {
    pub(crate) name: &'static str,
    pub(crate) sm_percent: u32,
    pub(crate) request: f64,
    pub(crate) limit: f64,
    /// Time of one launch, or of all work that may be in flight, in ns.
    pub(crate) launch: u64,
    /// Arguments of `load`; empty for the model-server.
    load: &'static [&'static str],
}

/// Two that fit on the device together, and one that does not fit beside either: together 70 % of the slot.
pub(crate) const PODS: [Pod; 3] = [
    Pod {
        name: "kernels",
        sm_percent: 40,
        request: 0.3,
        limit: 0.4,
        launch: 2_000_000,
        load: &["--ns", "2000000", "--batch", "4", "--seconds", "3600"],
    },
    Pod {
        name: "graphs",
        sm_percent: 60,
        request: 0.4,
        limit: 0.5,
        launch: 8_000_000,
        load: &[
            "--ns",
            "1000000",
            "--graph",
            "4",
            "--batch",
            "2",
            "--seconds",
            "3600",
        ],
    },
    Pod {
        name: "model",
        sm_percent: 100,
        request: 0.2,
        limit: 1.0,
        launch: 2_000_000,
        load: &[],
    },
];
/// Index of the model-server.
const MODEL: usize = 2;
/// Address of the pod's queue-proxy, unique to this test.
const BIND: [u8; 4] = [127, 88, 61, 3];
/// Divisor of the model-server's sizes, equal to the software GPU's.
const BYTES_SCALE: &str = "64";

type Variables = Vec<(String, String)>;

#[derive(Debug)]
pub(crate) struct Pods {
    /// Environment variables of each pod's containers since its admission.
    environments: Vec<Variables>,
    programs: Vec<Option<Child>>,
    /// PIDs of all processes, current and past, each with its pod.
    pub(crate) pids: Vec<(u32, usize)>,
    proxy: Child,
    model_port: u16,
    log: PathBuf,
}

impl Pods {
    /// Creates the pods and the queue-proxy; nothing computes yet.
    pub(crate) fn start(node: &Node) -> Self {
        for pod in PODS {
            let annotations = format!(
                "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"{}\"\nweir.dev/quota-request=\"{}\"\n\
                 weir.dev/quota-limit=\"{}\"\n",
                pod.sm_percent, pod.request, pod.limit
            );
            node.pod(pod.name, &annotations, "");
        }
        let variables = |pod: Pod| {
            let instance = node.instance(pod.name);
            let variables = instance["environment"].as_object().unwrap();
            let each = variables
                .iter()
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
            each.collect()
        };
        let model_port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let probe = format!(
            r#"{{"httpGet":{{"path":"/ready","port":{model_port}}},"successThreshold":1}}"#
        );
        let mut proxy = child("queue-proxy");
        proxy.env_clear().envs([
            ("SERVING_NAMESPACE", "default"),
            ("SERVING_CONFIGURATION", "model"),
            ("SERVING_REVISION", "model-00001"),
            ("QUEUE_SERVING_PORT", "8012"),
            ("QUEUE_SERVING_TLS_PORT", "8112"),
            ("CONTAINER_CONCURRENCY", "1"),
            ("REVISION_TIMEOUT_SECONDS", "300"),
            ("SERVING_POD", "model-00001-pod"),
            ("SERVING_POD_IP", "127.0.0.1"),
            ("SERVING_LOGGING_CONFIG", ""),
            ("SERVING_LOGGING_LEVEL", "error"),
            ("WEIR_PODINFO", "/nonexistent"),
            ("USER_PORT", &model_port.to_string()),
            ("WEIR_BIND", &IpAddr::from(BIND).to_string()),
            ("SERVING_READINESS_PROBE", &probe),
        ]);
        let proxy = proxy.spawn().unwrap();
        let pods = Self {
            environments: PODS.map(variables).into(),
            programs: PODS.map(|_| None).into(),
            pids: Vec::new(),
            proxy,
            model_port,
            log: node.file("pods.log"),
        };
        until("the queue-proxy listens", || {
            TcpStream::connect(pods.address()).is_ok()
        });
        pods
    }

    /// Returns the address for requests.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((BIND, 8012))
    }

    pub(crate) fn pid(&self, pod: usize) -> u32 {
        self.programs[pod].as_ref().unwrap().id()
    }

    fn begin(&mut self, node: &Node, pod: usize) {
        let mut command = if PODS[pod].load.is_empty() {
            child("model-server")
        } else {
            Command::new(built("load"))
        };
        node.softgpu.is_for(&mut command);
        if PODS[pod].load.is_empty() {
            command.envs([
                ("PORT", self.model_port.to_string().as_str()),
                ("MODEL_NAME", "resnet-50"),
                // Few long kernels, since each takes a line of the ledger.
                ("MODEL_KERNELS", "5x2ms"),
                ("MODEL_DEVICE", "gpu"),
                ("MODEL_CHECK", "all"),
                ("MODEL_VERIFY", "true"),
                ("WEIR_BYTES_SCALE", BYTES_SCALE),
            ]);
        } else {
            command.arg(ptx()).args(PODS[pod].load);
        }
        command.envs(self.environments[pod].iter().cloned());
        node.put(&mut command, PODS[pod].name);
        // Messages about a lost device are expected: they are shown only if the test fails.
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let program = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.pids.push((program.id(), pod));
        self.programs[pod] = Some(program);
    }

    /// Restarts ended or failed programs until all pods compute.
    pub(crate) fn repair(&mut self, node: &Node) {
        until("all pods compute", || {
            for pod in 0..PODS.len() {
                let ended = match &mut self.programs[pod] {
                    Some(program) => program.try_wait().unwrap().is_some(),
                    None => true,
                };
                if ended {
                    self.begin(node, pod);
                } else if pod == MODEL && self.has_failed() {
                    // As a failed liveness probe does.
                    let program = self.programs[pod].as_mut().unwrap();
                    program.kill().unwrap();
                    program.wait().unwrap();
                    self.begin(node, pod);
                }
            }
            // Polling every pod costs time on two cores.
            crate::pass(Duration::from_millis(20));
            (0..PODS.len()).all(|pod| self.computes(&node.instance(PODS[pod].name), pod))
        });
    }

    /// Returns whether the pod's only process is attached to the agent and computes.
    fn computes(&self, instance: &Value, pod: usize) -> bool {
        let processes = instance["processes"].as_array();
        let is_up = instance["mps"]["state"] == "up" || instance["mps"]["state"]["state"] == "up";
        is_up
            && instance["silent_processes"] == 0
            && processes.is_some_and(|list| {
                list.len() == 1
                    && list[0]["pid"] == self.pid(pod)
                    && list[0]["launches"].as_u64() > Some(0)
            })
            && (pod != MODEL || self.model_status("/ready") == Some(200))
    }

    fn model_status(&self, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.model_port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: model\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    fn has_failed(&self) -> bool {
        self.model_status("/health") == Some(500)
    }

    /// Kills a pod's program.
    pub(crate) fn kill(&mut self, pod: usize, checks: &mut Checks) {
        let mut program = self.programs[pod].take().unwrap();
        checks.dies(program.id());
        program.kill().unwrap();
        program.wait().unwrap();
    }

    /// Records that all programs are about to lose the device.
    pub(crate) fn lose_all(&self, checks: &mut Checks) {
        for pod in 0..PODS.len() {
            checks.dies(self.pid(pod));
        }
    }

    /// Waits until all pods have paid back their debts from the time in which no limits were enforced.
    pub(crate) fn pay(&self, node: &Node) {
        until("no pod owes anything", || {
            crate::pass(Duration::from_millis(20));
            PODS.iter().all(|pod| {
                let owed = &node.instance(pod.name)["token"]["debt_seconds"];
                owed.as_f64().is_some_and(|seconds| seconds < 0.01)
            })
        });
    }

    /// Asserts that all programs run.
    pub(crate) fn live(&self) {
        for (pod, of) in PODS.iter().enumerate() {
            assert!(!is_gone(self.pid(pod)), "{} has ended", of.name);
        }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let printed = fs::read_to_string(&self.log).unwrap_or_default();
            let _written = std::io::stderr().write_all(printed.as_bytes());
        }
        for program in self.programs.iter_mut().flatten() {
            let _gone = program.kill();
            let _status = program.wait();
        }
        let _gone = self.proxy.kill();
        let _status = self.proxy.wait();
    }
}

/// Returns the command of a child program, which ends with this test.
fn child(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let parent = std::process::id().to_string();
    command.args(["child", name, "--parent", &parent]);
    command
}
