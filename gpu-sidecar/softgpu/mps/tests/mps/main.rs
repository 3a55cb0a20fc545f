//! The program as its users have it: real processes, with a stand-in for softgpu's server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod place;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use place::{Place, is_gone, signal, until};
use rustix::net::{SendFlags, send};
use rustix::process::Signal;
use softgpu_wire::message::{Kind, Message, ProcessLine};

#[test]
fn a_client_of_its_own_process() {
    place::be_client();
}

#[test]
fn settings_are_said_as_scripts_expect_them() {
    let place = Place::new();
    place.daemon(&[]);
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
        assert_eq!(place.say(line), answer, "{line}");
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
        let said = place.say(line);
        assert!(said.contains(part), "{line}: {said}");
    }
    let all = place.front(b"get_default_client_priority\r\n\xff\n\nget_server_list\nhelp");
    let all = String::from_utf8(all.stdout).unwrap();
    assert!(
        all.starts_with("1\nUnrecognized command: \u{fffd}"),
        "{all}"
    );
}

#[test]
fn the_daemons_variables_set_the_defaults() {
    let place = Place::new();
    place.configure("[[gpu]]\npart = \"H100\"\ncount = 3");
    let output = place
        .program()
        .arg("-d")
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G,1=512M,7=1G")
        .env("CUDA_VISIBLE_DEVICES", "2,0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.say("get_default_active_thread_percentage"), "40.0\n");
    assert_eq!(place.say("get_default_device_pinned_mem_limit 1"), "512M\n");
    assert!(place.logged("control.log").contains("7=1G: ignored"));
    // The units of the node are told, not the devices as they are seen.
    let answer = place.client().answer().unwrap();
    assert_eq!(answer.words[..3], [41, 4000, 0]);
    let limits = [512_u64 << 20, 0, 2 << 30].map(u64::to_le_bytes).concat();
    assert_eq!(answer.bytes, limits);
}

#[test]
fn without_a_daemon_the_front_end_says_so() {
    let place = Place::new();
    for _ in 0..2 {
        let output = place.front(b"");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"Cannot find MPS control daemon process\n");
        std::fs::create_dir_all(&place.pipe).unwrap();
    }
    let refused = place.start(&["-S"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not supported"));
    let version = place.program().arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("binary version"));
}

#[test]
fn there_is_one_daemon_for_a_directory() {
    let place = Place::new();
    place.daemon(&[]);
    let pid = place.daemon_pid();
    for arguments in [&["-d"][..], &["-f"]] {
        let output = place.program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, "An instance of this daemon is already running\n");
    }
    // Of those that start at the same time, one stays.
    assert_eq!(place.say("quit"), "");
    until("the daemon has ended", || is_gone(pid));
    let mut command = place.program();
    command.arg("-d").stderr(Stdio::null());
    let starting: Vec<_> = (0..8).map(|_| command.spawn().unwrap()).collect();
    let started = starting
        .into_iter()
        .map(|mut child| child.wait().unwrap().success())
        .filter(|is_daemon| *is_daemon);
    assert_eq!(started.count(), 1);
    assert_eq!(place.say("get_server_list"), "");
}

#[test]
fn a_killed_daemon_leaves_nothing_in_the_way() {
    let place = Place::new();
    for how in [Signal::KILL, Signal::TERM] {
        place.daemon(&[]);
        let client = place.client().entered();
        let (daemon, server) = (place.daemon_pid(), place.number("get_server_list"));
        signal(daemon, how);
        assert!(client.answer().is_none(), "its connection has not ended");
        until("daemon and server have ended", || {
            is_gone(daemon) && is_gone(server)
        });
        assert_eq!(place.front(b"get_server_list\n").status.code(), Some(1));
        assert!(place.pipe.join("control").exists());
    }
    place.daemon(&[]);
    drop(place.client().entered());
}

#[test]
fn clients_are_let_in_listed_and_ended() {
    let place = Place::new();
    place.daemon(&[]);
    place.say("set_default_active_thread_percentage 50");
    place.say("set_default_device_pinned_mem_limit 0 6G");
    let client = place.client();
    let answer = client.answer().unwrap();
    assert_eq!((answer.kind, answer.error), (Kind::MpsEnter, 0));
    assert_eq!(answer.words[..3], [41, 5000, 0]);
    assert_eq!(answer.bytes, (6_u64 << 30).to_le_bytes());

    let server = place.number("get_server_list");
    let cmdline = std::fs::read(format!("/proc/{server}/cmdline")).unwrap();
    assert_eq!(cmdline, b"nvidia-cuda-mps-server\0");
    assert_eq!(
        place.say(&format!("get_server_status {server}")),
        "ACTIVE\n"
    );
    // What is set for the server holds for those that come now, and not for the next server.
    let say = |line: &str| place.say(&line.replace("PID", &server.to_string()));
    assert_eq!(say("set_active_thread_percentage PID 20"), "20.0\n");
    assert_eq!(say("set_device_pinned_mem_limit PID 0 512M"), "");
    assert_eq!(say("get_active_thread_percentage PID"), "20.0\n");
    assert_eq!(say("get_device_pinned_mem_limit PID 0"), "512M\n");
    assert_eq!(say("get_default_active_thread_percentage"), "50.0\n");
    let answer = place.client().answer().unwrap();
    assert_eq!(answer.words[..2], [41, 2000]);
    assert_eq!(answer.bytes, (512_u64 << 20).to_le_bytes());

    let mut process = place.process(None);
    process.says("answer 0");
    let (own, other) = (std::process::id(), process.pid());
    assert_eq!(say("get_client_list PID"), format!("{own}\n{other}\n"));
    place.device().set_lines(&[ProcessLine {
        pid: other,
        ..ProcessLine::default()
    }]);
    let listed = say("get_device_client_list PID");
    let uuid = listed.strip_suffix(&format!(" {other}\n")).unwrap();
    assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{listed}");
    let ps = say("ps -p PID");
    assert_eq!(ps, say("ps"));
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

    assert_eq!(say("terminate_client PID 1"), "Client 1 not found\n");
    assert_eq!(say(&format!("terminate_client PID {other}")), "0\n");
    assert_eq!(place.device().terminated(), [u64::from(other)]);
    process.leave();
    drop(client);
    until("all have left", || say("get_client_list PID").is_empty());
    let log = place.logged("server.log");
    assert!(log.contains(&format!("Server {server:>5}] New client {other} connected")));
    assert!(log.contains(&format!("Server {server:>5}] Client {other} disconnected")));
}

#[test]
fn the_death_of_a_server_is_its_clients_and_nobody_elses() {
    let place = Place::new();
    place.daemon(&[]);
    let client = place.client().entered();
    let server = place.number("get_server_list");
    signal(server, Signal::KILL);
    assert!(client.answer().is_none());
    assert_eq!(place.say("get_server_list"), "");
    let answer = place.client().answer().unwrap();
    assert_eq!((answer.error, answer.words[0]), (0, 42));
    assert_ne!(place.number("get_server_list"), server);
    assert!(place.logged("control.log").contains("exited with signal 9"));

    // The same when softgpu's server goes.
    let client = place.client().entered();
    place.device().hang_up();
    assert!(client.answer().is_none());
    place.client().entered();
}

#[test]
fn a_question_that_is_not_answered_says_so() {
    let place = Place::new();
    place.daemon(&[]);
    let _client = place.client().entered();
    let server = place.number("get_server_list");
    place.device().fall_silent();
    let mut waiting = place.front_child();
    let mut input = waiting.stdin.take().unwrap();
    input.write_all(b"ps\nget_server_list\n").unwrap();
    // Others are served meanwhile.
    assert_eq!(place.number("get_server_list"), server);
    drop(input);
    let output = waiting.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("Server {server} does not answer\n{server}\n"));
}

#[test]
fn after_a_fault_nobody_enters_until_who_met_it_is_gone() {
    let place = Place::new();
    place.daemon(&[]);
    let bystander = place.client().entered();
    let mut met = place.process(None);
    met.says("answer 0");
    let status = format!("get_server_status {}", place.number("get_server_list"));
    place.device().fault(&[met.pid()]);
    until("the fault is known", || place.say(&status) == "FAULT\n");
    assert_eq!(place.client().refused(), 807);
    met.leave();
    until("the fault is over", || place.say(&status) == "ACTIVE\n");
    let client = place.client().entered();
    // Without names, all have met it.
    place.device().fault(&[]);
    until("the fault is known", || place.say(&status) == "FAULT\n");
    drop(bystander);
    assert_eq!(place.client().refused(), 807);
    drop(client);
    until("the fault is over", || place.say(&status) == "ACTIVE\n");
}

#[test]
fn a_server_is_for_one_user() {
    let place = Place::new();
    place.daemon(&[]);
    assert_eq!(place.say("start_server -uid 4242"), "");
    let first = place.number("get_server_list");
    assert_eq!(place.say("start_server -uid 4242"), "");
    assert_eq!(place.number("get_server_list"), first);
    // It has no clients, so it makes room.
    let client = place.client().entered();
    let second = place.number("get_server_list");
    assert_ne!(first, second);
    let said = place.say("start_server -uid 4242");
    assert!(said.contains("has clients"), "{said}");

    if rustix::process::geteuid().is_root() {
        let mut other = place.process(Some(4242));
        other.says("asked");
        until("it waits", || {
            place
                .logged("control.log")
                .contains("from user 4242: Server is not ready")
        });
        // Who comes behind it waits as well, though the server is of its user.
        let behind = place.client();
        assert_eq!(place.number("get_server_list"), second);
        assert!(behind.waits());
        drop(client);
        other.says("answer 0");
        assert_ne!(place.number("get_server_list"), second);
        assert!(behind.waits());
        // Who gives up is not waited for.
        drop(behind);
        let behind = place.client();
        other.leave();
        behind.entered();
    }
}

#[test]
fn a_server_for_all_users_serves_all() {
    let place = Place::new();
    place.daemon(&["-multiuser-server"]);
    assert_eq!(place.say("start_server -uid 4242"), "");
    let server = place.number("get_server_list");
    let _client = place.client().entered();
    if rustix::process::geteuid().is_root() {
        let mut other = place.process(Some(4242));
        other.says("answer 0");
    }
    assert_eq!(place.number("get_server_list"), server);
}

#[test]
fn other_users_may_look_and_not_change() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    place.daemon(&[]);
    let user = Some(4242);
    for (line, said) in [
        ("quit -t 0", "Operation not permitted"),
        ("start_server -uid 4242", "Operation not permitted"),
        ("get_default_active_thread_percentage", "100.0"),
    ] {
        place.process_that_says(user, line).says(said);
    }
    assert_eq!(place.say("get_server_list"), "");
}

#[test]
fn a_server_that_is_shut_down_ends_after_its_clients() {
    let place = Place::new();
    place.daemon(&[]);
    assert_eq!(place.say("shutdown_server"), "No server is running\n");
    let client = place.client().entered();
    let server = place.number("get_server_list");
    assert_eq!(place.say(&format!("shutdown_server {server}")), "");
    let next = place.client();
    assert_eq!(place.number("get_server_list"), server);
    assert!(next.waits());
    drop(client);
    let next = next.entered();
    let server = place.number("get_server_list");
    assert_eq!(place.say(&format!("shutdown_server {server} -f")), "");
    assert!(next.answer().is_none());
    until("it has ended", || is_gone(server));
}

#[test]
fn quit_waits_for_clients_as_long_as_it_is_told() {
    let place = Place::new();
    place.daemon(&[]);
    let client = place.client().entered();
    let (daemon, server) = (place.daemon_pid(), place.number("get_server_list"));
    let mut quitting = place.front_child();
    writeln!(quitting.stdin.as_mut().unwrap(), "quit").unwrap();
    until("it quits", || {
        place.logged("control.log").contains("Cmd:quit")
    });
    assert_eq!(place.client().refused(), 807);
    assert_eq!(place.number("get_server_list"), server);
    assert!(client.waits());
    drop(client);
    // Standard input is still open: it is the daemon's end that ends it.
    assert!(quitting.wait().unwrap().success());
    until("daemon and server have ended", || {
        is_gone(daemon) && is_gone(server)
    });
    for file in ["control", "nvidia-cuda-mps-control.pid"] {
        assert!(!place.pipe.join(file).exists(), "{file}");
    }

    place.daemon(&[]);
    // What was set is lost.
    assert_eq!(place.say("get_default_active_thread_percentage"), "100.0\n");
    let client = place.client().entered();
    let daemon = place.daemon_pid();
    assert_eq!(place.say("quit -t 1"), "");
    assert!(client.answer().is_none());
    until("the daemon has ended", || is_gone(daemon));
    place.daemon(&[]);
}

#[test]
fn who_says_nothing_or_nonsense_is_in_nobodys_way() {
    let place = Place::new();
    place.daemon(&[]);
    let good = place.client().entered();
    let silent: Vec<_> = (0..2000).map(|_| place.connect()).collect();
    assert_eq!(place.say("get_default_active_thread_percentage"), "100.0\n");
    place.client().entered();
    drop(silent);
    for bytes in [vec![0], vec![0; 72], vec![255; 60_000], Vec::new()] {
        let client = place::Client {
            socket: place.connect(),
        };
        send(&client.socket, &bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(client.answer().is_none(), "{} bytes", bytes.len());
    }
    // A message that is none of a client's.
    for message in [
        Message::new(Kind::Hello, &[]),
        Message::new(Kind::MpsServer, &[7]),
    ] {
        let client = place::Client {
            socket: place.connect(),
        };
        message.send(&client.socket, SendFlags::empty()).unwrap();
        assert!(client.answer().is_none());
    }
    // One that is silent for too long.
    let silent = place::Client {
        socket: place.connect(),
    };
    assert!(silent.answer().is_none());
    assert!(good.waits());
}

#[test]
fn clients_are_as_many_as_files_can_be_opened_for() {
    let place = Place::new();
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 200 && exec \"$0\" -d",
        env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"),
    ]);
    for (name, value) in place.program().get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    assert!(command.status().unwrap().success());
    let mut clients: Vec<_> = (0..8).map(|_| place.client().entered()).collect();
    assert_eq!(place.client().refused(), 809);
    assert!(place.say("ps").lines().count() >= 8);
    clients.pop();
    until("there is room", || place.client().refused() == 0);
}

#[test]
fn a_path_may_be_longer_than_an_address() {
    let place = Place::new().with_long_path();
    place.daemon(&[]);
    drop(place.client().entered());
    assert_eq!(place.say("get_default_active_thread_percentage"), "100.0\n");
    assert_eq!(place.say("quit"), "");
}

#[test]
fn a_server_that_cannot_start_is_an_error_and_not_a_wait() {
    let place = Place::without_device();
    place.daemon(&[]);
    assert_eq!(place.client().refused(), 805);
    let said = place.say("start_server -uid 0");
    assert!(
        said.contains("failed to start") && said.contains("softgpu-server"),
        "{said}"
    );
    until("it has ended", || place.say("get_server_list").is_empty());
    assert_eq!(place.say("quit"), "");
}

#[test]
fn logs_are_written_where_they_can_be() {
    let place = Place::new();
    let mut command = place.program();
    let mut daemon = command.arg("-f").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let socket = place.pipe.join("control");
    let start = format!("Starting control daemon using socket {}", socket.display());
    assert!(first.ends_with(&start), "{first}");
    until("it listens", || socket.exists());
    until("it is there", || place.front(b"").status.success());
    assert_eq!(
        place.say("set_default_active_thread_percentage 25"),
        "25.0\n"
    );
    assert_eq!(place.say("quit"), "");
    assert!(daemon.wait().unwrap().success());
    let log = place.logged("control.log");
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

    // A directory that is none.
    let mut place = place;
    place.log = place.pipe.join("control_lock");
    let output = place.start(&[]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let warning = "Warning: Failed writing log files to directory [";
    assert!(
        said.starts_with(warning) && said.lines().count() == 1,
        "{said}"
    );
    place.client().entered();
}

#[test]
fn a_server_is_nothing_for_people() {
    use std::os::unix::process::CommandExt as _;
    let place = Place::new();
    let output = place
        .program()
        .arg0("nvidia-cuda-mps-server")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is started by"));
}
