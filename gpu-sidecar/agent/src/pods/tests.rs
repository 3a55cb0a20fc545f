use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use annotations::Isolation;

use crate::state::{Inbox, Slot, SlotKind, seam};
use crate::testing::slot;

const SHARED: &str =
    "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"25\"\nweir.dev/gpu-memory=\"8Gi\"\n";

struct Bench {
    folder: tempfile::TempDir,
    keeper: Keeper,
    inbox: Inbox,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pods")).unwrap();
        fs::create_dir(folder.path().join("lib")).unwrap();
        for name in ["libweir_preload.so", "libweir_preload_core.so"] {
            fs::write(folder.path().join("lib").join(name), name).unwrap();
        }
        let (service, inbox) = seam().unwrap();
        let node = Arc::new(Node::default());
        for kind in [SlotKind::Mps, SlotKind::Exclusive] {
            let added = node.lock().add(0, |key| Slot {
                kind,
                ..slot(key.0)
            });
            assert!(added.is_some());
        }
        let keeper = Keeper::new(
            folder.path().join("pods"),
            Some(folder.path().join("lib")),
            node,
            Arc::default(),
            Arc::default(),
            service,
        );
        Self {
            folder,
            keeper,
            inbox,
        }
    }

    /// An agent that is started anew.
    fn again(self) -> Self {
        let (service, inbox) = seam().unwrap();
        let old = self.keeper;
        let keeper = Keeper::new(
            old.directory,
            old.preload,
            old.node,
            Arc::default(),
            Arc::default(),
            service,
        );
        Self {
            folder: self.folder,
            keeper,
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

    /// Looks once, and says what the service is told.
    fn scan(&mut self) -> Vec<String> {
        self.keeper.scan(None).unwrap();
        let mut told = Vec::new();
        while let Some(command) = self.inbox.next() {
            told.push(match command {
                Command::PodAdded { pod, listener } => {
                    drop(listener);
                    format!("+{} {} on {}", pod.key.0, pod.display(), pod.slot.0)
                }
                Command::PodChanged(pod) => {
                    format!("~{} {}", pod.key.0, pod.settings.sm_hundredths)
                }
                Command::PodRemoved(key) => format!("-{}", key.0),
                other => panic!("{other:?}"),
            });
        }
        told
    }

    fn refused(&self, name: &str) -> String {
        let told = fs::read_to_string(self.path(name).join("refused")).unwrap_or_default();
        let view = self.keeper.pods.lock();
        let known = view
            .refused
            .get(name)
            .map(|refused| format!("{}\n", refused.text));
        assert_eq!(known.unwrap_or_default(), told);
        told
    }
}

#[test]
fn a_pod_comes_changes_and_goes() {
    let mut bench = Bench::new();
    bench.pod("one", SHARED);
    fs::write(
        bench.path("one").join("pod.toml"),
        "namespace = \"team\"\nrevision = \"resnet-1\"\nuid = \"1f8c2ab0-7d3e-4c51-9d0a-5b1f0c6e7a22\"\n",
    )
    .unwrap();
    bench.pod("two", "other=\"1\"\n");
    assert_eq!(bench.scan(), ["+0 team/one on 0", "+1 default/two on 1"]);
    assert!(bench.scan().is_empty());
    let gate = bench.path("one").join("gate");
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
    bench.pod("one", &SHARED.replace("25", "50"));
    assert_eq!(bench.scan(), ["~0 5000"]);
    // Another revision is another pod.
    fs::write(bench.path("one").join("pod.toml"), "namespace = \"team\"\n").unwrap();
    assert_eq!(bench.scan(), ["-0", "+2 team/one on 0"]);
    fs::remove_file(bench.path("one").join("annotations")).unwrap();
    fs::remove_dir_all(bench.path("two")).unwrap();
    assert_eq!(bench.scan(), ["-2", "-1"]);
    assert!(!gate.join("gpu.sock").exists());
    assert!(bench.keeper.pods.lock().served.is_empty());
}

#[test]
fn another_folder_of_the_same_name_is_another_pod() {
    let mut bench = Bench::new();
    bench.pod("one", SHARED);
    assert_eq!(bench.scan(), ["+0 default/one on 0"]);
    fs::rename(bench.path("one"), bench.path(".gone")).unwrap();
    bench.pod("one", SHARED);
    assert_eq!(bench.scan(), ["-0", "+1 default/one on 0"]);
}

#[test]
fn a_bad_pod_is_refused_alone_and_served_when_it_is_good() {
    let mut bench = Bench::new();
    bench.pod(
        "bad",
        "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"0\"\n",
    );
    bench.pod("good", SHARED);
    assert_eq!(bench.scan(), ["+0 default/good on 0"]);
    assert_eq!(
        bench.refused("bad"),
        "weir.dev/sm-percent=\"0\": allowed: 1 to 100, with at most two decimals\n"
    );
    assert!(bench.scan().is_empty());
    assert_eq!(bench.keeper.pods.lock().refusals, [1, 0, 0, 0]);
    bench.pod("bad", SHARED);
    assert_eq!(bench.scan(), ["+1 default/bad on 0"]);
    assert_eq!(bench.refused("bad"), "");
    // A bad change leaves it as it was.
    bench.pod("bad", "weir.dev/isolation=\"share\"\n");
    assert!(bench.scan().is_empty());
    assert_eq!(
        bench.refused("bad"),
        "weir.dev/isolation=\"share\": allowed: strict, tenant, shared\nThe pod goes on as it was before this \
         change.\n"
    );
    bench.pod("bad", SHARED);
    assert!(bench.scan().is_empty());
    assert_eq!(bench.refused("bad"), "");
    assert_eq!(bench.keeper.pods.lock().served.len(), 2);
}

#[test]
fn pod_files_are_checked() {
    let mut bench = Bench::new();
    bench.pod("one", SHARED);
    for (text, expected) in [
        (
            "namespce = \"x\"",
            "pod.toml:1: namespce: is no key here; allowed: cgroup, function, mps-pipe-directory, name, namespace, revision, slot, uid\n",
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
        ("slot = \"9\"", "there is no slot \"9\"; slots: 0, 1\n"),
    ] {
        fs::write(bench.path("one").join("pod.toml"), text).unwrap();
        assert!(bench.scan().is_empty());
        assert_eq!(bench.refused("one"), expected);
    }
}

#[test]
fn who_fits_nowhere_is_tried_again() {
    let mut bench = Bench::new();
    bench.pod("big", &SHARED.replace("8Gi", "50Gi"));
    bench.pod("bigger", &SHARED.replace("8Gi", "60Gi"));
    assert_eq!(bench.scan(), ["+0 default/big on 0"]);
    assert_eq!(
        bench.refused("bigger"),
        "slot 0: 60Gi of memory are wanted (context included), and 30Gi of 80Gi are free; slot 1: is exclusive; \
         isolation: shared needs an mps slot\n"
    );
    fs::remove_dir_all(bench.path("big")).unwrap();
    let told = bench.scan();
    assert_eq!(told, ["-0", "+1 default/bigger on 0"]);
    assert_eq!(bench.refused("bigger"), "");
}

#[test]
fn a_later_agent_finds_the_slot_and_replaces_the_socket() {
    let mut bench = Bench::new();
    let another = bench.keeper.node.lock().add(0, |key| slot(key.0));
    assert!(another.is_some());
    bench.pod("one", SHARED);
    fs::write(bench.path("one").join("pod.toml"), "slot = \"2\"").unwrap();
    assert_eq!(bench.scan(), ["+0 default/one on 2"]);
    let before = fs::symlink_metadata(bench.path("one").join("gate/gpu.sock")).unwrap();
    // Without the preference it would be another.
    fs::write(bench.path("one").join("pod.toml"), "").unwrap();
    let mut bench = bench.again();
    assert_eq!(bench.scan(), ["+0 default/one on 2"]);
    let after = fs::symlink_metadata(bench.path("one").join("gate/gpu.sock")).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_ne!(before.ino(), after.ino());
    // Its slot is lost: it is not put elsewhere.
    bench.keeper.node.lock().slots[2].lost = Some("Xid 79".to_owned());
    let mut bench = bench.again();
    assert!(bench.scan().is_empty());
    assert_eq!(bench.refused("one"), "its slot 2 is lost: Xid 79\n");
}

#[test]
fn what_must_not_be_followed_or_read_is_refused() {
    let mut bench = Bench::new();
    let outside = bench.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("annotations"), SHARED).unwrap();
    symlink(&outside, bench.path("link")).unwrap();
    fs::create_dir(bench.path("inner")).unwrap();
    symlink(
        outside.join("annotations"),
        bench.path("inner").join("annotations"),
    )
    .unwrap();
    fs::create_dir_all(bench.path("folder").join("annotations")).unwrap();
    fs::create_dir(bench.path("pipe")).unwrap();
    let pipe = bench.path("pipe").join("annotations");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    bench.pod("huge", &format!("a=\"{}\"\n", "x".repeat(256 * 1024)));
    bench.pod("bytes", "");
    fs::write(bench.path("bytes").join("annotations"), b"a=\"\xff\"\n").unwrap();
    bench.pod("gate", SHARED);
    symlink(&outside, bench.path("gate").join("gate")).unwrap();
    fs::write(bench.path("file"), "").unwrap();
    assert!(bench.scan().is_empty());
    for (name, expected) in [
        (
            "inner",
            "annotations: is a symbolic link, and links are not followed\n",
        ),
        ("folder", "annotations: is no regular file\n"),
        ("pipe", "annotations: is no regular file\n"),
        ("huge", "annotations: is larger than 262144 bytes\n"),
        ("bytes", "annotations: is not UTF-8 at byte 3\n"),
    ] {
        assert_eq!(bench.refused(name), expected);
    }
    assert!(
        bench.refused("gate").starts_with("gate: "),
        "{}",
        bench.refused("gate")
    );
    assert!(!outside.join("gpu.sock").exists());
    let events = bench.keeper.events.past();
    let told = |part: &str| events.iter().any(|event| event.text.contains(part));
    assert!(told("link: is a symbolic link"));
    let count = events.len();
    assert!(bench.scan().is_empty());
    assert_eq!(bench.keeper.events.past().len(), count);
}

#[test]
fn odd_names_are_refused_and_harm_nobody() {
    let mut bench = Bench::new();
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
        bench.pod(name, SHARED);
    }
    bench.pod(".hidden", SHARED);
    bench.pod("one", SHARED);
    assert_eq!(bench.scan(), ["+0 default/one on 0"]);
    for name in odd {
        assert!(
            bench
                .refused(name)
                .starts_with("the folder's name: allowed: "),
            "{name}"
        );
    }
    assert!(!bench.path(".hidden").join("gate").exists());
}

#[test]
fn a_thousand_folders_are_borne() {
    let mut bench = Bench::new();
    {
        let mut node = bench.keeper.node.lock();
        for own in &mut node.slots {
            own.slot = Arc::new(Slot {
                seats: 1_100,
                ..(*own.slot).clone()
            });
        }
    }
    for number in 0..PODS_MAX + 10 {
        bench.pod(&format!("pod-{number:04}"), "");
    }
    // The service takes as many commands as there may be pods before somebody waits.
    assert_eq!(bench.scan().len(), PODS_MAX);
    let last = format!("pod-{:04}", PODS_MAX + 9);
    assert_eq!(
        bench.refused(&last),
        "1024 pods are served on this node, and no more are\n"
    );
    assert!(bench.scan().is_empty());
    fs::remove_dir_all(bench.path("pod-0000")).unwrap();
    let told = bench.scan();
    assert_eq!(told, ["-0", "+0 default/pod-1024 on 1"]);
}

#[test]
fn without_libraries_pods_are_served_and_it_is_said() {
    let mut bench = Bench::new();
    fs::remove_dir_all(bench.folder.path().join("lib")).unwrap();
    bench.pod("one", SHARED);
    assert_eq!(bench.scan(), ["+0 default/one on 0"]);
    let events = bench.keeper.events.past();
    let is_told =
        |event: &Arc<crate::events::Event>| event.text.contains("nothing holds their programs");
    assert!(events.iter().any(is_told), "{events:?}");
}

#[test]
fn changes_are_seen_without_waiting_for_the_next_look() {
    let bench = Bench::new();
    let Bench {
        folder,
        keeper,
        inbox,
    } = bench;
    keeper.node.set_surveyed();
    let stop = Stop::default();
    let pods = Arc::clone(&keeper.pods);
    std::thread::scope(|scope| {
        scope.spawn(|| keeper.run(&stop));
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
