use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use annotations::Isolation;

use crate::state::{Inbox, Slot, SlotKind, service_channel};
use crate::testing::slot;

const SHARED: &str =
    "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"25\"\nweir.dev/gpu-memory=\"8Gi\"\n";

struct Fixture {
    folder: tempfile::TempDir,
    pod_watcher: PodWatcher,
    inbox: Inbox,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pods")).unwrap();
        fs::create_dir(folder.path().join("lib")).unwrap();
        for name in ["libweir_preload.so", "libweir_preload_core.so"] {
            fs::write(folder.path().join("lib").join(name), name).unwrap();
        }
        let (service, inbox) = service_channel().unwrap();
        let node = Arc::new(Node::default());
        for kind in [SlotKind::Mps, SlotKind::Exclusive] {
            let added = node.lock().add(0, |key| Slot {
                kind,
                ..slot(key.0)
            });
            assert!(added.is_some());
        }
        let pod_watcher = PodWatcher::new(
            folder.path().join("pods"),
            Some(folder.path().join("lib")),
            node,
            Arc::default(),
            Arc::default(),
            service,
        );
        Self {
            folder,
            pod_watcher,
            inbox,
        }
    }

    /// Restarts the agent on the same directory.
    fn again(self) -> Self {
        let (service, inbox) = service_channel().unwrap();
        let old = self.pod_watcher;
        let pod_watcher = PodWatcher::new(
            old.directory,
            old.preload,
            old.node,
            Arc::default(),
            Arc::default(),
            service,
        );
        Self {
            folder: self.folder,
            pod_watcher,
            inbox,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("pods").join(name)
    }

    fn pod(&self, name: &str, annotations: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
        fs::write(self.path(name).join("annotations"), annotations).unwrap();
    }

    /// Scans once and returns the commands sent to the service.
    fn scan(&mut self) -> Vec<String> {
        self.pod_watcher.scan(None).unwrap();
        let mut commands = Vec::new();
        while let Some(command) = self.inbox.next() {
            commands.push(match command {
                Command::PodAdded {
                    pod,
                    listener,
                    queue,
                } => {
                    drop((listener, queue));
                    format!("+{} {} on {}", pod.key.0, pod.display(), pod.slot.0)
                }
                Command::PodChanged(pod) => {
                    format!("~{} {}", pod.key.0, pod.settings.sm_hundredths)
                }
                Command::PodRemoved(key) => format!("-{}", key.0),
                other => panic!("{other:?}"),
            });
        }
        commands
    }

    fn refused(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(name).join("refused")).unwrap_or_default();
        let view = self.pod_watcher.pods.lock();
        let known = view
            .refused
            .get(name)
            .map(|refused| format!("{}\n", refused.text));
        assert_eq!(known.unwrap_or_default(), text);
        text
    }
}

#[test]
fn a_pod_is_added_changed_and_removed() {
    let mut fixture = Fixture::new();
    fixture.pod("one", SHARED);
    fs::write(
        fixture.path("one").join("pod.toml"),
        "namespace = \"team\"\nrevision = \"resnet-1\"\nuid = \"1f8c2ab0-7d3e-4c51-9d0a-5b1f0c6e7a22\"\n",
    )
    .unwrap();
    fixture.pod("two", "other=\"1\"\n");
    assert_eq!(fixture.scan(), ["+0 team/one on 0", "+1 default/two on 1"]);
    assert!(fixture.scan().is_empty());
    let gate = fixture.path("one").join("gate");
    let mode = |name: &str| {
        fs::symlink_metadata(gate.join(name))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode("gpu.sock") & 0o777, 0o666);
    assert_eq!(
        fs::read_to_string(gate.join("libweir_preload_core.so")).unwrap(),
        "libweir_preload_core.so"
    );
    fixture.pod("one", &SHARED.replace("25", "50"));
    assert_eq!(fixture.scan(), ["~0 5000"]);
    // A changed revision makes it another pod.
    fs::write(
        fixture.path("one").join("pod.toml"),
        "namespace = \"team\"\n",
    )
    .unwrap();
    assert_eq!(fixture.scan(), ["-0", "+2 team/one on 0"]);
    fs::remove_file(fixture.path("one").join("annotations")).unwrap();
    fs::remove_dir_all(fixture.path("two")).unwrap();
    assert_eq!(fixture.scan(), ["-2", "-1"]);
    assert!(!gate.join("gpu.sock").exists());
    assert!(fixture.pod_watcher.pods.lock().served.is_empty());
}

#[test]
fn another_folder_of_the_same_name_is_another_pod() {
    let mut fixture = Fixture::new();
    fixture.pod("one", SHARED);
    assert_eq!(fixture.scan(), ["+0 default/one on 0"]);
    fs::rename(fixture.path("one"), fixture.path(".gone")).unwrap();
    fixture.pod("one", SHARED);
    assert_eq!(fixture.scan(), ["-0", "+1 default/one on 0"]);
}

#[test]
fn an_invalid_pod_is_refused_alone_until_it_is_valid() {
    let mut fixture = Fixture::new();
    fixture.pod(
        "bad",
        "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"0\"\n",
    );
    fixture.pod("good", SHARED);
    assert_eq!(fixture.scan(), ["+0 default/good on 0"]);
    assert_eq!(
        fixture.refused("bad"),
        "weir.dev/sm-percent=\"0\": allowed: 1 to 100, with at most two decimals\n"
    );
    assert!(fixture.scan().is_empty());
    assert_eq!(fixture.pod_watcher.pods.lock().refusals, [1, 0, 0, 0]);
    fixture.pod("bad", SHARED);
    assert_eq!(fixture.scan(), ["+1 default/bad on 0"]);
    assert_eq!(fixture.refused("bad"), "");
    // A refused change keeps the previous settings.
    fixture.pod("bad", "weir.dev/isolation=\"share\"\n");
    assert!(fixture.scan().is_empty());
    assert_eq!(
        fixture.refused("bad"),
        "weir.dev/isolation=\"share\": allowed: strict, tenant, shared\nThe pod keeps its previous \
         settings.\n"
    );
    fixture.pod("bad", SHARED);
    assert!(fixture.scan().is_empty());
    assert_eq!(fixture.refused("bad"), "");
    assert_eq!(fixture.pod_watcher.pods.lock().served.len(), 2);
}

#[test]
fn pod_files_are_validated() {
    let mut fixture = Fixture::new();
    fixture.pod("one", SHARED);
    for (text, expected) in [
        (
            "namespce = \"x\"",
            "pod.toml:1: namespce: unknown key; allowed: cgroup, function, mps-pipe-directory, name, namespace, revision, slot, uid\n",
        ),
        (
            "uid = \"7\"",
            "pod.toml:1: uid: \"7\": allowed: a UUID, as the pod's metadata.uid\n",
        ),
        (
            "\nnamespace = \"A\"",
            "pod.toml:2: namespace: \"A\": allowed: 1 to 63 of a-z, 0-9 and -, no - at either end\n",
        ),
        (
            "cgroup = \"x\"",
            "pod.toml:1: cgroup: \"x\": allowed: an absolute path\n",
        ),
        ("slot = \"9\"", "unknown slot \"9\"; slots: 0, 1\n"),
    ] {
        fs::write(fixture.path("one").join("pod.toml"), text).unwrap();
        assert!(fixture.scan().is_empty());
        assert_eq!(fixture.refused("one"), expected);
    }
}

#[test]
fn a_pod_that_fits_nowhere_is_retried() {
    let mut fixture = Fixture::new();
    fixture.pod("big", &SHARED.replace("8Gi", "50Gi"));
    fixture.pod("bigger", &SHARED.replace("8Gi", "60Gi"));
    assert_eq!(fixture.scan(), ["+0 default/big on 0"]);
    assert_eq!(
        fixture.refused("bigger"),
        "slot 0: 60Gi of memory requested (context included), 30Gi of 80Gi free; slot 1: is exclusive; \
         isolation: shared needs an mps slot\n"
    );
    fs::remove_dir_all(fixture.path("big")).unwrap();
    let commands = fixture.scan();
    assert_eq!(commands, ["-0", "+1 default/bigger on 0"]);
    assert_eq!(fixture.refused("bigger"), "");
}

#[test]
fn a_later_agent_keeps_the_slot_and_replaces_the_socket() {
    let mut fixture = Fixture::new();
    let another = fixture.pod_watcher.node.lock().add(0, |key| slot(key.0));
    assert!(another.is_some());
    fixture.pod("one", SHARED);
    fs::write(fixture.path("one").join("pod.toml"), "slot = \"2\"").unwrap();
    assert_eq!(fixture.scan(), ["+0 default/one on 2"]);
    let before = fs::symlink_metadata(fixture.path("one").join("gate/gpu.sock")).unwrap();
    // Without the preference the placement would differ.
    fs::write(fixture.path("one").join("pod.toml"), "").unwrap();
    let mut fixture = fixture.again();
    assert_eq!(fixture.scan(), ["+0 default/one on 2"]);
    let after = fs::symlink_metadata(fixture.path("one").join("gate/gpu.sock")).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_ne!(before.ino(), after.ino());
    // While its slot is lost, the pod is not placed elsewhere.
    fixture.pod_watcher.node.lock().slots[2].lost = Some("Xid 79".to_owned());
    let mut fixture = fixture.again();
    assert!(fixture.scan().is_empty());
    assert_eq!(fixture.refused("one"), "its slot 2 is lost: Xid 79\n");
}

#[test]
fn links_and_unreadable_files_are_refused() {
    let mut fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("annotations"), SHARED).unwrap();
    symlink(&outside, fixture.path("link")).unwrap();
    fs::create_dir(fixture.path("inner")).unwrap();
    symlink(
        outside.join("annotations"),
        fixture.path("inner").join("annotations"),
    )
    .unwrap();
    fs::create_dir_all(fixture.path("folder").join("annotations")).unwrap();
    fs::create_dir(fixture.path("pipe")).unwrap();
    let pipe = fixture.path("pipe").join("annotations");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    fixture.pod("huge", &format!("a=\"{}\"\n", "x".repeat(256 * 1024)));
    fixture.pod("bytes", "");
    fs::write(fixture.path("bytes").join("annotations"), b"a=\"\xff\"\n").unwrap();
    fixture.pod("gate", SHARED);
    symlink(&outside, fixture.path("gate").join("gate")).unwrap();
    fs::write(fixture.path("file"), "").unwrap();
    assert!(fixture.scan().is_empty());
    for (name, expected) in [
        (
            "inner",
            "annotations: is a symbolic link, and links are not followed\n",
        ),
        ("folder", "annotations: is not a regular file\n"),
        ("pipe", "annotations: is not a regular file\n"),
        ("huge", "annotations: is larger than 262144 bytes\n"),
        ("bytes", "annotations: is not UTF-8 at byte 3\n"),
    ] {
        assert_eq!(fixture.refused(name), expected);
    }
    assert!(
        fixture.refused("gate").starts_with("gate: "),
        "{}",
        fixture.refused("gate")
    );
    assert!(!outside.join("gpu.sock").exists());
    let events = fixture.pod_watcher.events.past();
    let is_recorded = |part: &str| events.iter().any(|event| event.text.contains(part));
    assert!(is_recorded("link: is a symbolic link"));
    let count = events.len();
    assert!(fixture.scan().is_empty());
    assert_eq!(fixture.pod_watcher.events.past().len(), count);
}

#[test]
fn invalid_names_are_refused_alone() {
    let mut fixture = Fixture::new();
    let odd = [
        "Übung",
        "a b",
        "a\nb",
        "-a",
        "a%s",
        "a\u{202e}b",
        "UPPER",
        "a'b",
        &"x".repeat(255),
    ];
    for name in odd {
        fixture.pod(name, SHARED);
    }
    fixture.pod(".hidden", SHARED);
    fixture.pod("one", SHARED);
    assert_eq!(fixture.scan(), ["+0 default/one on 0"]);
    for name in odd {
        assert!(
            fixture
                .refused(name)
                .starts_with("the folder's name: allowed: "),
            "{name}"
        );
    }
    assert!(!fixture.path(".hidden").join("gate").exists());
}

#[test]
fn more_folders_than_pods_are_handled() {
    let mut fixture = Fixture::new();
    {
        let mut node = fixture.pod_watcher.node.lock();
        for own in &mut node.slots {
            own.slot = Arc::new(Slot {
                seats: 1_100,
                ..(*own.slot).clone()
            });
        }
    }
    for number in 0..PODS_MAX + 10 {
        fixture.pod(&format!("pod-{number:04}"), "");
    }
    // The command queue has room for as many commands as there may be pods.
    assert_eq!(fixture.scan().len(), PODS_MAX);
    let last = format!("pod-{:04}", PODS_MAX + 9);
    assert_eq!(
        fixture.refused(&last),
        "too many pods: at most 1024 are served per node\n"
    );
    assert!(fixture.scan().is_empty());
    fs::remove_dir_all(fixture.path("pod-0000")).unwrap();
    let commands = fixture.scan();
    assert_eq!(commands, ["-0", "+0 default/pod-1024 on 1"]);
}

#[test]
fn missing_libraries_are_reported_and_pods_are_served() {
    let mut fixture = Fixture::new();
    fs::remove_dir_all(fixture.folder.path().join("lib")).unwrap();
    fixture.pod("one", SHARED);
    assert_eq!(fixture.scan(), ["+0 default/one on 0"]);
    let events = fixture.pod_watcher.events.past();
    let is_reported =
        |event: &Arc<crate::events::Event>| event.text.contains("their programs are not gated");
    assert!(events.iter().any(is_reported), "{events:?}");
}

#[test]
fn changes_are_noticed_before_the_next_scan() {
    let fixture = Fixture::new();
    let Fixture {
        folder,
        pod_watcher,
        inbox,
    } = fixture;
    pod_watcher.node.set_surveyed();
    let stop = Stop::default();
    let pods = Arc::clone(&pod_watcher.pods);
    std::thread::scope(|scope| {
        scope.spawn(|| pod_watcher.run(&stop));
        let path = folder.path().join("pods/one");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("annotations"), SHARED).unwrap();
        const PATIENCE: Duration = Duration::from_secs(60);
        let begin = Instant::now();
        while pods.lock().served.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "no pod within {PATIENCE:?}");
            std::thread::yield_now();
        }
        let pod = Arc::clone(&pods.lock().served[0]);
        assert_eq!(pod.settings.isolation, Isolation::Shared);
        fs::remove_dir_all(&path).unwrap();
        while !pods.lock().served.is_empty() {
            assert!(
                begin.elapsed() < PATIENCE,
                "the pod is still there after {PATIENCE:?}"
            );
            std::thread::yield_now();
        }
        stop.set();
    });
    assert!(matches!(inbox.next(), Some(Command::PodAdded { .. })));
    assert!(matches!(inbox.next(), Some(Command::PodRemoved(PodKey(0)))));
}
