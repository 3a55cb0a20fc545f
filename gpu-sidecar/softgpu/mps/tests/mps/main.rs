//! Tests of the real processes, with a stand-in for softgpu's server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod softgpu_dir;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use rustix::net::{SendFlags, send};
use rustix::process::Signal;
use softgpu_dir::{SoftGpuDir, is_gone, signal};
use softgpu_wire::message::{Kind, Message, ProcessLine};
use testing::until;

#[test]
fn a_client_of_its_own_process() {
    softgpu_dir::run_client();
}

#[test]
fn settings_are_printed_in_the_expected_format() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    for (line, answer) in [
        ("get_default_active_thread_percentage", "100.0\n"),
        ("set_default_active_thread_percentage 25", "25.0\n"),
        ("get_default_active_thread_percentage", "25.0\n"),
        ("set_default_active_thread_percentage 12.5", "12.5\n"),
        ("set_default_device_pinned_mem_limit 0 4096M", ""),
        ("get_default_device_pinned_mem_limit 0", "4G\n"),
        (
            "set_default_device_pinned_mem_limit 1 1G",
            "Device 1 not found\n",
        ),
        ("get_default_client_priority", "0\n"),
        ("set_default_client_priority 1", ""),
        ("get_default_client_priority", "1\n"),
        ("get_server_list", ""),
        ("get_device_client_list", ""),
        ("", ""),
        ("get_client_list 123", "Server 123 not found\n"),
        ("get_server_status 123", "Server 123 not found\n"),
        ("get_active_thread_percentage 123", "Server 123 not found\n"),
        (
            "set_device_pinned_mem_limit 123 0 1G",
            "Server 123 not found\n",
        ),
        ("terminate_client 123 5", "Server 123 not found\n"),
        ("shutdown_server 123 -f", "Server 123 not found\n"),
    ] {
        assert_eq!(dir.run(line), answer, "{line}");
    }
    for (line, part) in [
        (
            "set_default_active_thread_percentage 0",
            "Invalid active thread percentage",
        ),
        ("set_default_device_pinned_mem_limit 0 6K", "G or M"),
        ("nonsense", "Unrecognized command: nonsense"),
        ("help", "terminate_client SERVER_PID CLIENT_PID"),
        (
            "ps",
            "PID       ID   SERVER    DEVICE                 NAMESPACE  COMMAND",
        ),
        (&"x".repeat(10_000), "longer than 4096 bytes"),
    ] {
        let said = dir.run(line);
        assert!(said.contains(part), "{line}: {said}");
    }
    let all = dir.front(b"get_default_client_priority\r\n\xff\n\nget_server_list\nhelp");
    let all = String::from_utf8(all.stdout).unwrap();
    assert!(
        all.starts_with("1\nUnrecognized command: \u{fffd}"),
        "{all}"
    );
}

#[test]
fn the_daemons_variables_set_the_defaults() {
    let dir = SoftGpuDir::new();
    dir.configure("[[gpu]]\npart = \"H100\"\ncount = 3");
    let output = dir
        .program()
        .arg("-d")
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G,1=512M,7=1G")
        .env("CUDA_VISIBLE_DEVICES", "2,0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(dir.run("get_default_active_thread_percentage"), "40.0\n");
    assert_eq!(dir.run("get_default_device_pinned_mem_limit 1"), "512M\n");
    assert!(dir.logged("control.log").contains("7=1G: ignored"));
    // Units are numbered by node, not by visible device.
    let answer = dir.client().answer().unwrap();
    assert_eq!(answer.words[..3], [41, 4000, 0]);
    let limits = [512_u64 << 20, 0, 2 << 30].map(u64::to_le_bytes).concat();
    assert_eq!(answer.bytes, limits);
}

#[test]
fn the_front_end_fails_without_a_daemon() {
    let dir = SoftGpuDir::new();
    for _ in 0..2 {
        let output = dir.front(b"");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"Cannot find MPS control daemon process\n");
        std::fs::create_dir_all(&dir.pipe).unwrap();
    }
    let refused = dir.start(&["-S"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not supported"));
    let version = dir.program().arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("binary version"));
}

#[test]
fn a_directory_has_at_most_one_daemon() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let pid = dir.daemon_pid();
    for arguments in [&["-d"][..], &["-f"]] {
        let output = dir.program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, "An instance of this daemon is already running\n");
    }
    // Of several started at once, one remains.
    assert_eq!(dir.run("quit"), "");
    until("the daemon has ended", || is_gone(pid));
    let mut command = dir.program();
    command.arg("-d").stderr(Stdio::null());
    let starting: Vec<_> = (0..8).map(|_| command.spawn().unwrap()).collect();
    let started = starting
        .into_iter()
        .map(|mut child| child.wait().unwrap().success())
        .filter(|is_daemon| *is_daemon);
    assert_eq!(started.count(), 1);
    assert_eq!(dir.run("get_server_list"), "");
}

#[test]
fn a_killed_daemon_does_not_prevent_the_next() {
    let dir = SoftGpuDir::new();
    for how in [Signal::KILL, Signal::TERM] {
        dir.daemon(&[]);
        let client = dir.client().entered();
        let (daemon, server) = (dir.daemon_pid(), dir.number("get_server_list"));
        signal(daemon, how);
        assert!(client.answer().is_none(), "its connection has not ended");
        until("daemon and server have ended", || {
            is_gone(daemon) && is_gone(server)
        });
        assert_eq!(dir.front(b"get_server_list\n").status.code(), Some(1));
        assert!(dir.pipe.join("control").exists());
    }
    dir.daemon(&[]);
    drop(dir.client().entered());
}

#[test]
fn clients_are_admitted_listed_and_terminated() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    dir.run("set_default_active_thread_percentage 50");
    dir.run("set_default_device_pinned_mem_limit 0 6G");
    let client = dir.client();
    let answer = client.answer().unwrap();
    assert_eq!((answer.kind, answer.error), (Kind::MpsEnter, 0));
    assert_eq!(answer.words[..3], [41, 5000, 0]);
    assert_eq!(answer.bytes, (6_u64 << 30).to_le_bytes());

    let server = dir.number("get_server_list");
    let cmdline = std::fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert_eq!(cmdline, b"nvidia-cuda-mps-server\0");
    assert_eq!(dir.run(&format!("get_server_status {server}")), "ACTIVE\n");
    // Settings of a server apply to its next clients, not to the next server.
    let run = |line: &str| dir.run(&line.replace("PID", &server.to_string()));
    assert_eq!(run("set_active_thread_percentage PID 20"), "20.0\n");
    assert_eq!(run("set_device_pinned_mem_limit PID 0 512M"), "");
    assert_eq!(run("get_active_thread_percentage PID"), "20.0\n");
    assert_eq!(run("get_device_pinned_mem_limit PID 0"), "512M\n");
    assert_eq!(run("get_default_active_thread_percentage"), "50.0\n");
    let answer = dir.client().answer().unwrap();
    assert_eq!(answer.words[..2], [41, 2000]);
    assert_eq!(answer.bytes, (512_u64 << 20).to_le_bytes());

    let mut process = dir.process(None);
    process.expect_line("answer 0");
    let (own, other) = (std::process::id(), process.pid());
    assert_eq!(run("get_client_list PID"), format!("{own}\n{other}\n"));
    dir.device().set_lines(&[ProcessLine {
        pid: other,
        ..ProcessLine::default()
    }]);
    let listed = run("get_device_client_list PID");
    let uuid = listed.strip_suffix(&format!(" {other}\n")).unwrap();
    assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{listed}");
    let ps = run("ps -p PID");
    assert_eq!(ps, run("ps"));
    let line = ps.lines().find(|line| line.starts_with(&other.to_string()));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(
        words[..4],
        [&*other.to_string(), "2", &*server.to_string(), &uuid[..22]]
    );
    assert!(
        words[4].parse::<u64>().is_ok() && words[5..7] == ["a", "client"],
        "{ps}"
    );

    assert_eq!(run("terminate_client PID 1"), "Client 1 not found\n");
    assert_eq!(run(&format!("terminate_client PID {other}")), "0\n");
    assert_eq!(dir.device().terminated(), [u64::from(other)]);
    process.leave();
    drop(client);
    until("all have left", || run("get_client_list PID").is_empty());
    let log = dir.logged("server.log");
    assert!(log.contains(&format!("Server {server:>5}] New client {other} connected")));
    assert!(log.contains(&format!("Server {server:>5}] Client {other} disconnected")));
}

#[test]
fn the_death_of_a_server_affects_only_its_clients() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let client = dir.client().entered();
    let server = dir.number("get_server_list");
    signal(server, Signal::KILL);
    assert!(client.answer().is_none());
    assert_eq!(dir.run("get_server_list"), "");
    let answer = dir.client().answer().unwrap();
    assert_eq!((answer.error, answer.words[0]), (0, 42));
    assert_ne!(dir.number("get_server_list"), server);
    assert!(dir.logged("control.log").contains("exited with signal 9"));

    // The same holds when softgpu's server ends.
    let client = dir.client().entered();
    dir.device().hang_up();
    assert!(client.answer().is_none());
    dir.client().entered();
}

#[test]
fn an_unanswered_request_is_reported() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let _client = dir.client().entered();
    let server = dir.number("get_server_list");
    dir.device().fall_silent();
    let mut waiting = dir.front_child();
    let mut input = waiting.stdin.take().unwrap();
    input.write_all(b"ps\nget_server_list\n").unwrap();
    // Other front ends are served meanwhile.
    assert_eq!(dir.number("get_server_list"), server);
    drop(input);
    let output = waiting.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("Server {server} does not answer\n{server}\n"));
}

#[test]
fn after_a_fault_no_client_is_admitted_until_affected_ones_are_gone() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let bystander = dir.client().entered();
    let mut met = dir.process(None);
    met.expect_line("answer 0");
    let status = format!("get_server_status {}", dir.number("get_server_list"));
    dir.device().fault(&[met.pid()]);
    until("the fault is known", || dir.run(&status) == "FAULT\n");
    assert_eq!(dir.client().refused(), 807);
    met.leave();
    until("the fault is over", || dir.run(&status) == "ACTIVE\n");
    let client = dir.client().entered();
    // Without names, the fault affects all clients.
    dir.device().fault(&[]);
    until("the fault is known", || dir.run(&status) == "FAULT\n");
    drop(bystander);
    assert_eq!(dir.client().refused(), 807);
    drop(client);
    until("the fault is over", || dir.run(&status) == "ACTIVE\n");
}

#[test]
fn a_server_is_for_one_user() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    assert_eq!(dir.run("start_server -uid 4242"), "");
    let first = dir.number("get_server_list");
    assert_eq!(dir.run("start_server -uid 4242"), "");
    assert_eq!(dir.number("get_server_list"), first);
    // It has no clients and is therefore stopped.
    let client = dir.client().entered();
    let second = dir.number("get_server_list");
    assert_ne!(first, second);
    let said = dir.run("start_server -uid 4242");
    assert!(said.contains("has clients"), "{said}");

    if rustix::process::geteuid().is_root() {
        let mut other = dir.process(Some(4242));
        other.expect_line("asked");
        until("it waits", || {
            dir.logged("control.log")
                .contains("from user 4242: Server is not ready")
        });
        // A client behind it waits as well, although the server is of its user.
        let behind = dir.client();
        assert_eq!(dir.number("get_server_list"), second);
        assert!(behind.waits());
        drop(client);
        other.expect_line("answer 0");
        assert_ne!(dir.number("get_server_list"), second);
        assert!(behind.waits());
        // A client that disconnects is no longer waited for.
        drop(behind);
        let behind = dir.client();
        other.leave();
        behind.entered();
    }
}

#[test]
fn a_server_for_all_users_serves_all() {
    let dir = SoftGpuDir::new();
    dir.daemon(&["-multiuser-server"]);
    assert_eq!(dir.run("start_server -uid 4242"), "");
    let server = dir.number("get_server_list");
    let _client = dir.client().entered();
    if rustix::process::geteuid().is_root() {
        let mut other = dir.process(Some(4242));
        other.expect_line("answer 0");
    }
    assert_eq!(dir.number("get_server_list"), server);
}

#[test]
fn other_users_may_query_but_not_change() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let user = Some(4242);
    for (line, said) in [
        ("quit -t 0", "Operation not permitted"),
        ("start_server -uid 4242", "Operation not permitted"),
        ("get_default_active_thread_percentage", "100.0"),
    ] {
        dir.process_running(user, line).expect_line(said);
    }
    assert_eq!(dir.run("get_server_list"), "");
}

#[test]
fn a_server_that_is_shut_down_ends_after_its_clients() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    assert_eq!(dir.run("shutdown_server"), "No server is running\n");
    let client = dir.client().entered();
    let server = dir.number("get_server_list");
    assert_eq!(dir.run(&format!("shutdown_server {server}")), "");
    let next = dir.client();
    assert_eq!(dir.number("get_server_list"), server);
    assert!(next.waits());
    drop(client);
    let next = next.entered();
    let server = dir.number("get_server_list");
    assert_eq!(dir.run(&format!("shutdown_server {server} -f")), "");
    assert!(next.answer().is_none());
    until("it has ended", || is_gone(server));
}

#[test]
fn quit_waits_for_clients_up_to_its_timeout() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let client = dir.client().entered();
    let (daemon, server) = (dir.daemon_pid(), dir.number("get_server_list"));
    let mut quitting = dir.front_child();
    writeln!(quitting.stdin.as_mut().unwrap(), "quit").unwrap();
    until("it quits", || {
        dir.logged("control.log").contains("Cmd:quit")
    });
    assert_eq!(dir.client().refused(), 807);
    assert_eq!(dir.number("get_server_list"), server);
    assert!(client.waits());
    drop(client);
    // Standard input is still open: the end of the daemon ends the front end.
    assert!(quitting.wait().unwrap().success());
    until("daemon and server have ended", || {
        is_gone(daemon) && is_gone(server)
    });
    for file in ["control", "nvidia-cuda-mps-control.pid"] {
        assert!(!dir.pipe.join(file).exists(), "{file}");
    }

    dir.daemon(&[]);
    // Settings do not outlive the daemon.
    assert_eq!(dir.run("get_default_active_thread_percentage"), "100.0\n");
    let client = dir.client().entered();
    let daemon = dir.daemon_pid();
    assert_eq!(dir.run("quit -t 1"), "");
    assert!(client.answer().is_none());
    until("the daemon has ended", || is_gone(daemon));
    dir.daemon(&[]);
}

#[test]
fn silent_or_malformed_peers_do_not_delay_others() {
    let dir = SoftGpuDir::new();
    dir.daemon(&[]);
    let good = dir.client().entered();
    let silent: Vec<_> = (0..2000).map(|_| dir.connect()).collect();
    assert_eq!(dir.run("get_default_active_thread_percentage"), "100.0\n");
    dir.client().entered();
    drop(silent);
    for bytes in [vec![0], vec![0; 72], vec![255; 60_000], Vec::new()] {
        let client = softgpu_dir::Client {
            socket: dir.connect(),
        };
        send(&client.socket, &bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(client.answer().is_none(), "{} bytes", bytes.len());
    }
    // A message that no client sends.
    for message in [
        Message::new(Kind::Hello, &[]),
        Message::new(Kind::MpsServer, &[7]),
    ] {
        let client = softgpu_dir::Client {
            socket: dir.connect(),
        };
        message.send(&client.socket, SendFlags::empty()).unwrap();
        assert!(client.answer().is_none());
    }
    // A connection that stays silent for too long.
    let silent = softgpu_dir::Client {
        socket: dir.connect(),
    };
    assert!(silent.answer().is_none());
    assert!(good.waits());
}

#[test]
fn the_limit_of_open_files_bounds_the_clients() {
    let dir = SoftGpuDir::new();
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 200 && exec \"$0\" -d",
        env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"),
    ]);
    for (name, value) in dir.program().get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    assert!(command.status().unwrap().success());
    let mut clients: Vec<_> = (0..8).map(|_| dir.client().entered()).collect();
    assert_eq!(dir.client().refused(), 809);
    assert!(dir.run("ps").lines().count() >= 8);
    clients.pop();
    until("there is room", || dir.client().refused() == 0);
}

#[test]
fn a_path_may_exceed_a_socket_address() {
    let dir = SoftGpuDir::new().with_long_path();
    dir.daemon(&[]);
    drop(dir.client().entered());
    assert_eq!(dir.run("get_default_active_thread_percentage"), "100.0\n");
    assert_eq!(dir.run("quit"), "");
}

#[test]
fn a_server_that_cannot_start_is_reported_at_once() {
    let dir = SoftGpuDir::without_device();
    dir.daemon(&[]);
    assert_eq!(dir.client().refused(), 805);
    let said = dir.run("start_server -uid 0");
    assert!(
        said.contains("failed to start") && said.contains("softgpu-server"),
        "{said}"
    );
    until("it has ended", || dir.run("get_server_list").is_empty());
    assert_eq!(dir.run("quit"), "");
}

#[test]
fn logs_are_written_if_possible() {
    let dir = SoftGpuDir::new();
    let mut command = dir.program();
    let mut daemon = command.arg("-f").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let socket = dir.pipe.join("control");
    let start = format!("Starting control daemon using socket {}", socket.display());
    assert!(first.ends_with(&start), "{first}");
    until("it listens", || socket.exists());
    until("it is there", || dir.front(b"").status.success());
    assert_eq!(dir.run("set_default_active_thread_percentage 25"), "25.0\n");
    assert_eq!(dir.run("quit"), "");
    assert!(daemon.wait().unwrap().success());
    let log = dir.logged("control.log");
    assert!(log.starts_with(&first));
    let all = [
        "NEW UI",
        "Cmd:set_default_active_thread_percentage 25",
        "] 25.0",
        "UI closed",
    ];
    for part in all {
        assert!(log.contains(part), "{part}: {log}");
        assert!(
            lines.by_ref().any(|line| line.unwrap().contains(part)),
            "{part}"
        );
    }

    // A path that is no directory.
    let mut dir = dir;
    dir.log = dir.pipe.join("control_lock");
    let output = dir.start(&[]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let warning = "Warning: Failed writing log files to directory [";
    assert!(
        said.starts_with(warning) && said.lines().count() == 1,
        "{said}"
    );
    dir.client().entered();
}

#[test]
fn a_server_cannot_be_started_by_hand() {
    use std::os::unix::process::CommandExt as _;
    let dir = SoftGpuDir::new();
    let output = dir
        .program()
        .arg0("nvidia-cuda-mps-server")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is started by"));
}
