//! The agent as a process, with software GPUs and real MPS daemons.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod catalogue;
mod csi;
mod external_mps;
mod node;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use node::{Node, check, connects, is_gone, program, signal};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, socket,
};
use rustix::process::Signal;
use softgpu_wire::message::{Kind, Message};
use testing::until;

const H100: &str = "[[gpu]]\npart = \"H100\"";
const SHARED: &str = "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"25\"\nweir.dev/quota-request=\"0.3\"\n\
                      weir.dev/quota-limit=\"0.8\"\nweir.dev/gpu-memory=\"8Gi\"\n";

#[test]
fn slots_are_the_devices_that_nvml_lists() {
    let gpus = "[[gpu]]\npart = \"H100\"\n[[gpu]]\npart = \"V100\"\n[[gpu]]\npart = \"A100\"\n\
                slices = [\"3g.40gb\", \"2g.20gb\"]";
    let node = Node::running(gpus, "[[slot]]\nindex = 1\nkind = \"exclusive\"\n");
    let slots = until("all slots are there", || {
        let slots = node.get("/v1/slots");
        (slots["slots"].as_array().unwrap().len() == 4).then_some(slots)
    });
    assert_eq!(slots["driver"]["version"], "580.82.07");
    let figures: Vec<_> = slots["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| {
            (
                slot["slot"].as_str().unwrap(),
                slot["kind"].as_str().unwrap(),
                slot["sms"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        figures,
        [
            ("0", "mps", 132),
            ("1", "exclusive", 80),
            ("2:0", "mps", 42),
            ("2:1", "mps", 28)
        ]
    );
    let limit = |at: usize| slots["slots"][at]["mps"]["client_limit"].as_u64().unwrap();
    assert_eq!((limit(0), limit(2), limit(3)), (48, 20, 13));
    assert_eq!(slots["slots"][1]["mps"]["state"]["state"], "none");
    let daemons = [0, 2, 3].map(|at| node.daemon(at));
    // Each daemon has its own device and directory.
    for (daemon, at) in daemons.iter().zip([0, 2, 3]) {
        let environment = fs::read(format!("/proc/{daemon}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let uuid = slots["slots"][at]["uuid"].as_str().unwrap();
        assert!(
            environment.contains(&format!("CUDA_VISIBLE_DEVICES={uuid}\0")),
            "{environment}"
        );
        assert!(
            environment.contains(&format!("/mps/{uuid}/pipe\0")),
            "{environment}"
        );
    }
    let page = node.metrics();
    for part in [
        "weir_gpu_agent_nvml_up 1",
        ",slot=\"2:0\"} 42",
        "slot=\"1\"} 0",
        "slot=\"0\",state=\"up\"} 1",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert_eq!(node.request("GET /healthz"), (200, "ok\n".to_owned()));
}

#[test]
fn a_killed_daemon_is_restarted() {
    let node = Node::running(H100, "");
    let before = node.daemon(0);
    // A client is connected.
    let pipe = node.slot(0)["mps"]["pipe_directory"]
        .as_str()
        .unwrap()
        .to_owned();
    let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(format!("{pipe}/control")).unwrap();
    connect(&client, &address).unwrap();
    Message::new(Kind::MpsEnter, &[])
        .send(&client, SendFlags::empty())
        .unwrap();
    assert_eq!(
        Message::receive(&client, RecvFlags::empty()).unwrap().error,
        0
    );
    let own = std::process::id();
    until("the client is listed", || {
        let clients = node.slot(0)["mps"]["state"]["clients"].clone();
        clients
            .as_array()?
            .iter()
            .any(|pid| *pid == own)
            .then_some(())
    });
    assert!(node.metrics().contains("weir_gpu_slot_mps_clients{"));
    signal(before, Signal::KILL);
    let after = until("another answers", || {
        Some(node.daemon(0)).filter(|pid| *pid != before)
    });
    assert!(!is_gone(after));
    assert_eq!(node.slot(0)["mps"]["restarts"], 1);
    assert_eq!(
        node.events("mps-down"),
        ["the daemon has ended with signal: 9 (SIGKILL)"]
    );
    let hit = format!(
        "the daemon has ended with signal: 9 (SIGKILL): all its clients have failed: pid {own}"
    );
    assert_eq!(node.events("mps-clients-failed"), [hit]);
    let restarts = "weir_gpu_slot_mps_restarts_total{";
    let page = node.metrics();
    let line = page
        .lines()
        .find(|line| line.starts_with(restarts))
        .unwrap();
    assert!(line.ends_with("} 1"), "{line}");
}

#[test]
fn a_daemon_outlives_agents_and_is_adopted() {
    let mut node = Node::running(H100, "");
    let daemon = node.daemon(0);
    for how in [Signal::KILL, Signal::TERM] {
        let code = node.end(how);
        assert_eq!(code, if how == Signal::TERM { Some(0) } else { None });
        assert!(!is_gone(daemon));
        node.start();
        assert_eq!(node.daemon(0), daemon);
        assert_eq!(node.slot(0)["mps"]["state"]["adopted"], true);
        assert_eq!(
            node.events("mps-up"),
            [format!(
                "the daemon of an earlier agent was adopted (pid {daemon})"
            )]
        );
    }
    // An adopted daemon, which is not a child, is watched as well.
    signal(daemon, Signal::KILL);
    let next = until("another answers", || {
        Some(node.daemon(0)).filter(|pid| *pid != daemon)
    });
    assert_eq!(node.slot(0)["mps"]["state"]["adopted"], false);
    node.end(Signal::TERM);
    node.start_with(&["--stop-mps"]);
    assert_eq!(node.daemon(0), next);
    assert_eq!(node.end(Signal::TERM), Some(0));
    until("the daemon has ended", || is_gone(next).then_some(()));
}

#[test]
fn a_missing_control_program_is_reported_and_pods_are_refused() {
    let node = Node::running(H100, "mps-control = \"/nowhere/nvidia-cuda-mps-control\"\n");
    let why = "no MPS control program: searched /nowhere/nvidia-cuda-mps-control; it comes with the driver \
               (nvidia-compute-utils or nvidia-driver-cuda); set node.mps-control to its path";
    until("the state is unable", || {
        let state = node.slot(0)["mps"]["state"].clone();
        (state["state"] == "unable" && state["reason"] == why).then_some(())
    });
    assert_eq!(node.events("mps-unable"), [why]);
    let folder = node.pod("one", SHARED);
    let reason = until("the pod is refused", || {
        fs::read_to_string(folder.join("refused")).ok()
    });
    assert_eq!(reason, format!("slot 0: MPS cannot run there: {why}\n"));
    assert!(node.metrics().contains("slot=\"0\",state=\"unable\"} 1"));
}

/// Creates a control program from a script and returns the configuration for it.
fn scripted(node: &Node, text: &str) -> String {
    let path = node.softgpu().join("scripted");
    testing::write_script(&path, text);
    format!("mps-control = {path:?}\n")
}

#[test]
fn a_clients_fault_is_reported_with_all_affected_clients() {
    let mut node = Node::new(H100, "");
    node.config = scripted(
        &node,
        "cd \"$CUDA_MPS_PIPE_DIRECTORY\"\n\
         [ \"$1\" = -f ] && echo $$ > nvidia-cuda-mps-control.pid && exec sleep 100\n\
         while read -r line; do case \"$line\" in\n\
         get_default_active_thread_percentage) echo 100.0;;\n\
         get_server_list) cat servers;;\n\
         get_server_status*) cat status;;\n\
         get_client_list*) cat clients;;\n\
         esac; done 2>/dev/null",
    );
    node.start();
    node.daemon(0);
    let pipe = node.slot(0)["mps"]["pipe_directory"]
        .as_str()
        .unwrap()
        .to_owned();
    let pipe = std::path::Path::new(&pipe);
    fs::write(pipe.join("status"), "ACTIVE\n").unwrap();
    fs::write(pipe.join("clients"), "1000011\n1000012\n").unwrap();
    fs::write(pipe.join("servers"), "77\n").unwrap();
    until("clients are listed", || {
        let clients = node.slot(0)["mps"]["state"]["clients"].clone();
        (clients == serde_json::json!([1_000_011, 1_000_012])).then_some(())
    });
    let log = "[x] Client connected\n[x] Server encountered a fatal exception\n[x] more\n";
    fs::write(pipe.with_file_name("log").join("server.log"), log).unwrap();
    fs::write(pipe.join("status"), "FAULT\n").unwrap();
    let texts = until("the failure is reported", || {
        Some(node.events("mps-clients-failed")).filter(|texts| !texts.is_empty())
    });
    assert_eq!(
        texts,
        [
            "a client's fault on MPS server 77 ([x] Server encountered a fatal exception): all its clients have \
             failed: pid 1000011, 1000012"
        ]
    );
    assert_eq!(node.end(Signal::TERM), Some(0));
    node.start_with(&["--stop-mps"]);
    // Its process is unknown: the answering daemon is adopted.
    until("the daemon is up", || {
        (node.slot(0)["mps"]["state"]["adopted"] == true).then_some(())
    });
}

#[test]
fn a_daemon_that_fails_to_start_is_reported_with_its_output() {
    let mut node = Node::new(H100, "");
    node.config = scripted(
        &node,
        "echo one >&2; echo 'Failed to start: no device' >&2; exit 3",
    );
    node.start();
    let reason = until("the daemon is down", || {
        let state = node.slot(0)["mps"]["state"].clone();
        (state["state"] == "down").then(|| state["reason"].as_str().unwrap().to_owned())
    });
    assert_eq!(
        reason,
        "the daemon has ended with exit status: 3: Failed to start: no device"
    );
    assert!(node.metrics().contains("slot=\"0\",state=\"up\"} 0"));
}

#[test]
fn a_lost_gpu_is_a_lost_slot() {
    let gpus = "[[gpu]]\npart = \"H100\"\ncount = 2";
    let node = Node::running(gpus, "");
    let _device = node.device();
    let daemon = node.daemon(0);
    // A program's own fault does not lose the slot.
    until("the Xid is reported", || {
        node.inject(1, 31);
        node.events("device-error")
            .iter()
            .any(|text| text.starts_with("Xid 31 on GPU-"))
            .then_some(())
    });
    assert!(node.slot(1)["lost"].is_null());
    node.inject(0, 79);
    until("the slot is lost", || {
        node.slot(0)["lost"].as_str().map(str::to_owned)
    });
    assert!(node.slot(1)["lost"].is_null());
    assert_eq!(node.events("slot-lost").len(), 1);
    let page = node.metrics();
    let line = |start: &str, slot: &str| {
        let slot = format!("slot=\"{slot}\"");
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(start) && line.contains(&slot));
        line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(line("weir_gpu_slot_lost{", "0"), "1");
    assert_eq!(line("weir_gpu_slot_lost{", "1"), "0");
    assert_eq!(line("weir_gpu_slot_losses_total{", "0"), "1");
    // No pod is placed on it, and its daemon is not restarted.
    signal(daemon, Signal::KILL);
    let folder = node.pod("one", SHARED);
    let placed = until("the pod is placed", || node.instance("one"));
    assert_eq!(placed["slot"], "1");
    assert!(folder.join("slot").exists());
    let state = until("the daemon is down", || {
        let state = node.slot(0)["mps"]["state"].clone();
        (state["state"] == "down").then_some(state)
    });
    assert_eq!(state["reason"], "the slot is lost");
}

#[test]
fn pods_are_added_changed_and_removed() {
    let mut node = Node::running(H100, "");
    node.daemon(0);
    let one = node.pod("one", SHARED);
    fs::write(
        one.join("pod.toml"),
        "namespace = \"team\"\nrevision = \"resnet-00001\"\nfunction = \"resnet\"\n",
    )
    .unwrap();
    let pod = until("the pod is served", || {
        let all = node.get("/v1/instances");
        let one = all["instances"][0].clone();
        (one["revision"] == "resnet-00001").then_some(one)
    });
    assert_eq!(pod["sm_percent"], 25.0);
    assert_eq!(
        (&pod["quota_request"], &pod["quota_limit"]),
        (&0.3.into(), &0.8.into())
    );
    assert_eq!(
        pod["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"],
        "25"
    );
    assert_eq!(
        pod["environment"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"],
        "0=9012M"
    );
    assert!(connects(&one.join("gate/gpu.sock")));
    let bad = node.pod("bad", "weir.dev/sm-percent=\"7\"\n");
    let text = until("the pod is refused", || {
        fs::read_to_string(bad.join("refused")).ok()
    });
    assert_eq!(
        text,
        "weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\"\n"
    );
    until("the refusal is listed", || {
        let refused = node.get("/v1/instances")["refused"][0].clone();
        (refused["id"] == "bad" && refused["reason"] == "invalid").then_some(())
    });
    let (status, body) = node.request("GET /v1/instances/bad");
    assert!(
        status == 404 && body.contains("the instance is refused"),
        "{body}"
    );
    assert!(
        node.metrics()
            .contains("weir_gpu_pods_refused_total{reason=\"invalid\"} 1")
    );
    // Quotas have the same labels as all other metrics of the pod.
    let labels = "function=\"resnet\",gpu=\"";
    until("the pod has metrics", || {
        let page = node.metrics();
        let has = |name: &str| page.contains(&format!("{name}{{{labels}"));
        (has("weir_gpu_quota_limit_ratio") && has("weir_gpu_used_seconds_total")).then_some(())
    });
    fs::write(one.join("annotations"), SHARED.replace("25", "50")).unwrap();
    until("the settings have changed", || {
        (node.get("/v1/instances/one")["sm_percent"] == 50.0).then_some(())
    });
    // The next agent finds the pod, and its socket accepts connections again.
    node.end(Signal::KILL);
    assert!(!connects(&one.join("gate/gpu.sock")));
    node.start();
    until("the socket accepts connections", || {
        connects(&one.join("gate/gpu.sock")).then_some(())
    });
    // The socket accepts connections before the pod is served; only a served pod's removal is an event.
    until("the pod is served again", || node.instance("one"));
    // A file that the agent creates at this moment makes the removal fail, as it does that of `rm -r`.
    until("the folder is removed", || {
        let removed = fs::remove_dir_all(&one);
        (removed.is_ok() || !one.exists()).then_some(())
    });
    until("the pod is removed", || {
        (node.request("GET /v1/instances/one").0 == 404).then_some(())
    });
    assert_eq!(
        node.events("pod-removed"),
        ["its folder or its annotations were removed"]
    );
}

#[test]
fn the_api_answers_valid_and_invalid_requests() {
    let node = Node::running(H100, "");
    node.daemon(0);
    let one = node.pod("one", SHARED);
    until("the pod is placed", || node.instance("one"));
    assert!(connects(&one.join("gate/gpu.sock")));
    for verb in ["evict", "restore"] {
        let (status, body) = node.request(&format!("POST /v1/instances/one:{verb}"));
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 409, "{body}");
        assert!(!answer["reason"].as_str().unwrap().is_empty(), "{body}");
    }
    for (request, status, part) in [
        ("GET /", 404, "\"allowed\":[\"GET /v1/slots\""),
        (
            "GET /v1/instances/none",
            404,
            "{\"error\":\"no such instance\",\"allowed\":[\"one\"]}",
        ),
        ("GET /v1/instances/", 404, "no such resource"),
        ("GET /v1/instances/a/b", 404, "no such resource"),
        ("GET /v1/instances/../slots", 404, "no such resource"),
        ("POST /v1/instances/none:evict", 404, "no such instance"),
        ("POST /v1/instances/one:explode", 404, "no such resource"),
        ("GET /v1/instances/one:evict", 405, "\"allowed\":[\"POST\"]"),
        ("DELETE /v1/slots", 405, "\"allowed\":[\"GET\",\"HEAD\"]"),
        (
            "GET /v1/slots\nOrigin: http://evil.example",
            403,
            "browsers",
        ),
    ] {
        let (received, body) = node.request(request);
        assert_eq!(received, status, "{request}: {body}");
        assert!(body.contains(part), "{request}: {body}");
    }
    let long = format!("GET /v1/slots\nX-Long: {}", "x".repeat(20_000));
    assert_eq!(node.request(&long).0, 431);
    let many = format!("GET /v1/slots{}", "\nX-One: 1".repeat(100));
    assert_eq!(node.request(&many).0, 431);
}

#[test]
fn silent_connections_are_closed() {
    let node = Node::running(H100, "");
    let address = node.control();
    let silent: Vec<_> = (0..64)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    // All permits are taken, and become free within the timeout of a head.
    assert_eq!(node.request("GET /healthz").0, 200);
    for mut stream in silent {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut received = Vec::new();
        let _reset = stream.read_to_end(&mut received);
    }
}

#[test]
fn streams_of_events_are_bounded_and_end_with_the_agent() {
    let mut node = Node::running(H100, "");
    let open = || {
        let mut stream = TcpStream::connect(node.control()).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (stream, String::from_utf8_lossy(&head).into_owned())
    };
    let mut streams: Vec<_> = (0..16).map(|_| open()).collect();
    assert!(streams.iter().all(|(_, head)| head == "HTTP/1.1 200"));
    assert_eq!(open().1, "HTTP/1.1 503");
    streams.pop();
    let (mut last, head) = until("there is room again", || {
        Some(open()).filter(|(_, head)| head == "HTTP/1.1 200")
    });
    assert_eq!(head, "HTTP/1.1 200");
    assert_eq!(node.end(Signal::TERM), Some(0));
    let mut rest = String::new();
    last.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"kind\":\"agent-started\""), "{rest}");
}

#[test]
fn a_node_without_a_gpu_reports_the_reason() {
    let node = Node::running(H100, "nvml-library = \"/nowhere/libnvidia-ml.so.1\"\n");
    let problem = until("the problem is reported", || {
        node.get("/v1/slots")["nvml_problem"]
            .as_str()
            .map(str::to_owned)
    });
    assert!(
        problem.starts_with("/nowhere/libnvidia-ml.so.1: cannot be loaded"),
        "{problem}"
    );
    let folder = node.pod("one", SHARED);
    let reason = until("the pod is refused", || {
        fs::read_to_string(folder.join("refused")).ok()
    });
    assert_eq!(reason, format!("no slots on this node: {problem}\n"));
    assert!(node.metrics().contains("weir_gpu_agent_nvml_up 0"));
}

#[test]
fn a_run_directory_has_one_agent() {
    let node = Node::running(H100, "");
    let output = node.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output_text.contains("another agent is running"),
        "{output_text}"
    );
    // The running agent is unaffected.
    assert_eq!(node.request("GET /healthz").0, 200);
}

#[test]
fn check_prints_the_effective_configuration() {
    let node = Node::new(H100, "");
    let nvml = node.softgpu().join("libnvidia-ml.so.1");
    let text = format!("[node]\nnvml-library = {nvml:?}\n[tokens]\nwindow = \"500ms\"\n");
    let output = check(&text, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output_text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "window = \"500ms\"",
        "horizon = \"10s\"",
        "control-address = \"127.0.0.1:9470\"",
        "# NVML answers; driver 580.82.07; slots: 1",
        "(NVIDIA H100 80GB HBM3), mps, 132 SMs, 81559 MiB, 48 seats",
    ] {
        assert!(output_text.contains(part), "{part}\n{output_text}");
    }
    // The output is a valid configuration.
    let again = check(&output_text, &[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let output = check(&text, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["valid"], true);
    assert_eq!(report["config"]["tokens"]["window"], "500ms");
    assert_eq!(report["nvml"]["slots"][0]["sms"], 132);
    // The configuration is valid without NVML too.
    let output = check("[node]\nnvml-library = \"/nowhere/nvml.so\"\n", &[]);
    assert_eq!(output.status.code(), Some(0));
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output_text.contains("# NVML does not answer: /nowhere/nvml.so: cannot be loaded"),
        "{output_text}"
    );
}

#[test]
fn check_reports_each_problem_and_exits_with_2() {
    let text = "[tokens]\nwindos = \"1s\"\nrule = \"fair\"\n";
    let output = check(text, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "agent.toml:2: tokens.windos: unknown key; allowed: backfill, cycle, horizon, inflight, inflight-alone, \
         rule, slice-max, slice-min, sm-limit, time-scale, window\n\
         agent.toml:3: tokens.rule: \"fair\": allowed: weir, paper, time-only, exclusive, racing, reactive-bucket\n"
    );
    let output = check(text, &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["valid"], false);
    assert_eq!(report["problems"][0]["line"], 2);
    assert_eq!(report["problems"][1]["key"], "tokens.rule");
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    for arguments in [
        &["check", "/nowhere/agent.toml"][..],
        &["run", "--config", "/nowhere/agent.toml"],
        &["run", "--nonsense"],
        &["nonsense"],
        &["check"],
        &[],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
    let help = program().arg("--help").output().unwrap();
    assert_eq!(help.status.code(), Some(0));
    let version = program().arg("--version").output().unwrap();
    assert_eq!(version.status.code(), Some(0));
    let printed = String::from_utf8(version.stdout).unwrap();
    assert_eq!(
        printed,
        format!("gpu-sidecar {}\n", env!("CARGO_PKG_VERSION"))
    );
}
