use std::time::Duration;

use super::*;

fn problems(text: &str) -> Vec<String> {
    let path = PathBuf::from("agent.toml");
    match Config::parse(text) {
        Ok(_) => Vec::new(),
        Err(problems) => {
            let error = ConfigError::Invalid { path, problems };
            error.to_string().lines().map(str::to_owned).collect()
        }
    }
}

#[test]
fn an_empty_file_yields_the_defaults() {
    assert_eq!(Config::parse(""), Ok(Config::default()));
    assert_eq!(
        Config::parse("[node]\n[tokens]\n[slots]\n[pods]"),
        Ok(Config::default())
    );
}

#[test]
fn every_key_is_read() {
    let config = Config::parse(
        r#"
[node]
run-directory = "/var/weir"
control-address = "[::1]:1"
metrics-address = "10.0.0.1:2"
nvml-library = "/usr/lib/libnvidia-ml.so.1"
mps-control = "/usr/bin/nvidia-cuda-mps-control"
preload = "/opt/weir"
host-memory = "64Gi"
staging = "16Mi"
log = "debug"

[tokens]
rule = "time-only"
sm-limit = 150.5
window = "500ms"
horizon = "5s"
cycle = "50ms"
slice-min = "1ms"
slice-max = "10ms"
backfill = 0
inflight = "250us"
inflight-alone = "1ms"
time-scale = 2

[slots]
kind = "exclusive"
seats = 8
context-residue = { mps = "400Mi", exclusive = "500Mi" }

[[slot]]
index = "1-2"
kind = "mps"

[[slot]]
uuid = "GPU-00000000-0000-0000-0000-000000000000"
seats = 3
context-residue = "1Gi"

[pods]
directory = "/pods"

[memory]
seal-after = "250ms"
stream-restores = "poisoned"

[pool]
rule = "lru"
end-faulted = false

[metrics]
pods = true

[price]
gpu-hour = 2.49
"#,
    )
    .unwrap();
    assert_eq!(config.node.run_directory, Path::new("/var/weir"));
    assert_eq!(config.node.control_address.port(), 1);
    assert_eq!(config.node.host_memory, Some(64 << 30));
    assert_eq!(config.node.staging, Some(16 << 20));
    let memory = config.memory_settings(1 << 40);
    assert_eq!(memory.host_bytes, 64 << 30);
    assert_eq!(memory.pinned_bytes, 64 << 30, "no more than all of it");
    let default = Config::default().memory_settings(1 << 40);
    assert_eq!(
        (default.host_bytes, default.pinned_bytes),
        (1 << 39, 1 << 37)
    );
    assert!(default.restores_on_demand);
    assert_eq!((memory.seal_after_ms, default.seal_after_ms), (250, 1_000));
    assert_eq!((memory.ends_faulted, default.ends_faulted), (false, true));
    assert_eq!(
        (memory.streaming, default.streaming),
        (Streaming::Poisoned, Streaming::Off)
    );
    assert_eq!(
        (memory.rule, default.rule),
        (leases::Rule::LeastRecentlyUsed, leases::Rule::Weir)
    );
    assert_eq!(
        (memory.staging_bytes, default.staging_bytes),
        (0, 32 << 20),
        "nothing where all of it may be registered"
    );
    let bounded = within(default, 512 << 20);
    assert_eq!(
        (bounded.host_bytes, bounded.pinned_bytes),
        (256 << 20, 256 << 20)
    );
    assert_eq!(bounded.staging_bytes, 0);
    assert_eq!(within(default, 1 << 20).host_bytes, 0);
    assert_eq!(config.node.log, LogLevel::Debug);
    assert_eq!(config.tokens.rule, Rule::TimeOnly);
    assert_eq!(config.tokens.sm_limit_hundredths, 15_050);
    assert_eq!(config.tokens.window, Duration::from_secs(1));
    assert_eq!(config.tokens.inflight, Duration::from_micros(500));
    assert_eq!(config.tokens.backfill, Duration::ZERO);
    assert_eq!(config.pods.directory, Path::new("/pods"));
    assert!(config.metrics.pods);
    assert_eq!(config.price.gpu_hour, Some(2_490_000));
    let first = config.slot("GPU-other", 0, None);
    assert_eq!(first.kind, SlotKind::Exclusive);
    assert_eq!(
        (first.seats, first.context_residue),
        (Some(8), Some(500 << 20))
    );
    let second = config.slot("GPU-other", 2, None);
    assert_eq!(second.kind, SlotKind::Mps);
    assert_eq!(second.context_residue, Some(400 << 20));
    let named = config.slot("gpu-00000000-0000-0000-0000-000000000000", 1, None);
    assert_eq!((named.kind, named.seats), (SlotKind::Mps, Some(3)));
    assert_eq!(named.context_residue, Some(1 << 30));
}

#[test]
fn the_pods_directory_follows_the_run_directory() {
    let config = Config::parse("[node]\nrun-directory = \"/x\"").unwrap();
    assert_eq!(config.pods.directory, Path::new("/x/pods"));
}

#[test]
fn patterns_match_gpus_and_instances() {
    let matches = |pattern: &str, gpu, instance| {
        let slot = SlotMatch::parse_index(pattern).unwrap();
        assert_eq!(slot.to_string(), pattern);
        slot.matches("GPU-x", gpu, instance)
    };
    assert!(matches("0", 0, None) && matches("0", 0, Some(3)) && !matches("0", 1, None));
    assert!(matches("0-3", 3, None) && !matches("0-3", 4, None));
    assert!(matches("*", 17, None));
    assert!(matches("1:2", 1, Some(2)) && !matches("1:2", 1, None) && !matches("1:2", 1, Some(3)));
    assert!(matches("*:*", 5, Some(6)) && !matches("*:*", 5, None));
    for wrong in [
        "",
        "-",
        "3-1",
        "a",
        "1:",
        ":1",
        "1:2:3",
        "+1",
        " 1",
        "99999999999",
    ] {
        assert!(SlotMatch::parse_index(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn problems_have_their_line_and_the_allowed_values() {
    for (text, expected) in [
        (
            "[tokens]\n\nwindos = \"1s\"",
            "agent.toml:3: tokens.windos: unknown key; allowed: backfill, cycle, horizon, inflight, \
             inflight-alone, rule, slice-max, slice-min, sm-limit, time-scale, window",
        ),
        (
            "[token]\nwindow = \"1s\"",
            "agent.toml:1: token: unknown key; allowed: memory, metrics, node, pods, pool, price, slot, slots, \
             tokens",
        ),
        (
            "[tokens]\nrule = \"fair\"",
            "agent.toml:2: tokens.rule: \"fair\": allowed: weir, paper, time-only, exclusive, racing, \
             reactive-bucket",
        ),
        (
            "[tokens]\nwindow = 1",
            "agent.toml:2: tokens.window: \"1\": allowed: a duration such as 250us, 100ms, 1.5s or 1m30s",
        ),
        (
            "[tokens]\nwindow = \"0s\"",
            "agent.toml:2: tokens.window: \"0s\": allowed: above 0, up to 100s",
        ),
        (
            "[metrics]\npods = 1",
            "agent.toml:2: metrics.pods: \"1\": allowed: true, false",
        ),
        (
            "[price]\ngpu-hour = \"free\"",
            "agent.toml:2: price.gpu-hour: \"free\": allowed: a number from 0 to 1000000 with at most six decimals",
        ),
        (
            "[tokens]\nsm-limit = 401",
            "agent.toml:2: tokens.sm-limit: \"401\": allowed: per cent above 0, up to 400, with at most two \
             decimals",
        ),
        (
            "[tokens]\ntime-scale = 9",
            "agent.toml:2: tokens.time-scale: \"9\": allowed: a whole number from 1 to 8",
        ),
        (
            "[tokens]\nhorizon = \"500ms\"",
            "agent.toml:2: tokens.horizon: window (1s) must not be longer than horizon (500ms)",
        ),
        (
            "[tokens]\nslice-min = \"90ms\"\ncycle = \"50ms\"",
            "agent.toml:2: tokens.slice-min: slice-min (90ms) must not be longer than cycle (50ms)",
        ),
        (
            "[node]\ncontrol-address = \"0.0.0.0:9470\"",
            "agent.toml:2: node.control-address: \"0.0.0.0:9470\": allowed: a loopback address, as \
             127.0.0.1:9470 or [::1]:9470; others need node.certificates",
        ),
        (
            "[node]\nmetrics-address = \"localhost\"",
            "agent.toml:2: node.metrics-address: \"localhost\": allowed: an IP address and a port, as \
             127.0.0.1:9470 or [::1]:9470",
        ),
        (
            "[node]\nrun-directory = \"run\"",
            "agent.toml:2: node.run-directory: \"run\": allowed: an absolute path",
        ),
        (
            "[node]\nnvml-library = \"lib/nvml.so\"",
            "agent.toml:2: node.nvml-library: \"lib/nvml.so\": allowed: an absolute path or a file name",
        ),
        (
            "[node]\nstaging = \"8Mi\"",
            "agent.toml:2: node.staging: \"8Mi\": allowed: 0, or 16Mi to 32Mi",
        ),
        (
            "[node]\nhost-memory = \"64GB\"",
            "agent.toml:2: node.host-memory: \"64GB\": allowed: a quantity of bytes such as 8Gi, 512Mi, 1.5G or \
             1000000",
        ),
        (
            "[memory]\nseal-after = \"1h1ms\"",
            "agent.toml:2: memory.seal-after: \"1h1ms\": allowed: 0, or 1ms to 1h in whole milliseconds",
        ),
        (
            "[pool]\nrule = \"best\"",
            "agent.toml:2: pool.rule: \"best\": allowed: weir, paper, fifo, random, lru, no-ahead",
        ),
        (
            "[pool]\nend-faulted = \"never\"",
            "agent.toml:2: pool.end-faulted: \"never\": allowed: true, false",
        ),
        (
            "[memory]\nrestore = \"never\"",
            "agent.toml:2: memory.restore: \"never\": allowed: demand, order",
        ),
        (
            "[node]\nlog = [1]",
            "agent.toml:2: node.log: has type array; a string or a number is needed",
        ),
        (
            "[slots]\nkind = \"mig\"",
            "agent.toml:2: slots.kind: \"mig\": allowed: mps, exclusive",
        ),
        (
            "[slots]\nseats = 0",
            "agent.toml:2: slots.seats: \"0\": allowed: a whole number from 1 to 1024",
        ),
        (
            "[slots]\ncontext-residue = \"1Gi\"",
            "agent.toml:2: slots.context-residue: is not a table",
        ),
        (
            "[slot]\nindex = 0",
            "agent.toml:1: slot: is not an array of tables: use [[slot]]",
        ),
        (
            "\n[[slot]]\nkind = \"mps\"",
            "agent.toml:2: slot.uuid: missing: a [[slot]] needs uuid or index",
        ),
        (
            "[[slot]]\nuuid = \"GPU-1\"\nindex = \"*\"",
            "agent.toml:3: slot.index: uuid is given as well; only one of the two is allowed",
        ),
        (
            "[[slot]]\nuuid = \"0\"",
            "agent.toml:2: slot.uuid: \"0\": allowed: a UUID as nvidia-smi -L prints it, beginning with GPU- or \
             MIG-",
        ),
        (
            "[[slot]]\nindex = \"all\"",
            "agent.toml:2: slot.index: \"all\": allowed: a GPU's number, a range or *, as 0, 0-3 or *; optionally \
             with its MIG instances, as 1:2 or 1:*",
        ),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
}

#[test]
fn all_problems_are_reported_in_line_order() {
    let text = "[tokens]\nwindow = 1\nrule = \"x\"\n[node]\nlog = \"loud\"\nnothing = 1\n";
    let lines: Vec<_> = problems(text)
        .iter()
        .map(|problem| problem.split(':').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["2", "3", "5", "6"]);
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let message = problems("[node]\nlog = \n");
    assert!(message[0].starts_with("agent.toml:2: "), "{message:?}");
    let message = problems("[node]\nlog = \"info\"\nlog = \"debug\"\n");
    assert!(message[0].starts_with("agent.toml:3: "), "{message:?}");
}

#[test]
fn unreadable_files_are_reported_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let message = |name: &str| {
        let error = Config::read(&folder.path().join(name)).unwrap_err();
        error
            .to_string()
            .rsplit_once(&format!("{name}: "))
            .unwrap()
            .1
            .to_owned()
    };
    assert_eq!(message("missing"), "No such file or directory (os error 2)");
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(message("folder"), "is not a regular file");
    std::fs::write(folder.path().join("bytes"), b"ab\xff").unwrap();
    assert_eq!(message("bytes"), "is not UTF-8 at byte 2");
    let long = vec![b'#'; usize::try_from(FILE_MAX).unwrap() + 1];
    std::fs::write(folder.path().join("long"), long).unwrap();
    assert_eq!(message("long"), "is larger than 1048576 bytes");
}

#[test]
fn the_configurations_of_the_manifests_are_valid() {
    for text in [
        include_str!("../../../../manifests/components/agent/agent.toml"),
        include_str!("../../../../manifests/components/softgpu/agent.toml"),
    ] {
        let config = Config::parse(text).unwrap();
        let csi = config.csi.unwrap();
        assert_eq!(csi.host_process, Some(HostProcess::Kubelet));
        assert!(config.node.certificates.is_some());
        assert!(!config.node.control_address.ip().is_loopback());
    }
}

#[test]
fn the_host_process_is_validated() {
    let host = |value: &str| Config::parse(&format!("[csi]\nhost-process = {value}\n"));
    let found = host("1").unwrap().csi.unwrap().host_process;
    assert_eq!(found, Some(HostProcess::Id(1)));
    let problems = host("\"dockerd\"").unwrap_err();
    assert_eq!(problems[0].key, "csi.host-process");
    assert!(
        problems[0]
            .text
            .ends_with("allowed: kubelet, or the id of a process"),
        "{problems:?}"
    );
}
