//! A directory of manifests: Revision, PodAutoscaler, EndpointSlice and Pod in the form of Kubernetes, in files
//! `*.yaml`, `*.yml` or `*.json` with one or several objects each.
//!
//! Change a file by writing another and renaming it into place, so that no file is read half written. The directory is
//! scanned ten times a second; while a file is invalid the last view stays in use.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::SourceFailures;
use super::object::{self, Object, ObjectError};
use crate::view::View;

/// Period at which the directory is scanned.
const PERIOD: Duration = Duration::from_millis(100);
/// Largest number of files in the directory.
const FILES_MAX: usize = 10_000;
/// Largest file in bytes.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The reason why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    /// A file or the directory cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file or the directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file is larger than [`BYTES_MAX`].
    #[error("{path}: larger than {BYTES_MAX} bytes")]
    Size {
        /// Path of the file.
        path: PathBuf,
    },
    /// The directory has more than [`FILES_MAX`] manifests.
    #[error("{path}: more than {FILES_MAX} manifests")]
    Count {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A file cannot be parsed.
    #[error("{path}: line {line}: {text:?}: {why}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Text of the line, cut to 80 characters.
        text: String,
        /// The error of the parser.
        why: String,
    },
    /// An object lacks a field, or has an invalid value.
    #[error("{path}: {error}")]
    Object {
        /// Path of the file.
        path: PathBuf,
        /// The object, and its error.
        error: ObjectError,
    },
}

/// The metadata by which a changed file is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

/// The manifests of a directory.
#[derive(Debug)]
pub(crate) struct Manifests {
    directory: PathBuf,
    files: BTreeMap<PathBuf, (Stamp, Arc<[Object]>)>,
}

impl Manifests {
    /// Returns the manifests of this directory, none of which is read yet.
    #[must_use]
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            files: BTreeMap::new(),
        }
    }

    /// Reads changed files. Returns the new view, or `None` if no file has changed.
    ///
    /// # Errors
    ///
    /// Fails with the error of the first invalid file. The view returned before stays valid.
    pub(crate) fn read(&mut self) -> Result<Option<View>, ManifestError> {
        let mut stamps = BTreeMap::new();
        for entry in self.entries()? {
            // A file that was deleted meanwhile is skipped.
            if let Ok(data) = fs::metadata(&entry) {
                stamps.insert(entry, Stamp::of(&data));
            }
        }
        let known = self.files.iter().map(|(path, (stamp, _))| (path, stamp));
        if stamps.iter().eq(known) && !self.files.is_empty() {
            return Ok(None);
        }
        let mut files = BTreeMap::new();
        for (path, stamp) in stamps {
            let objects = match self.files.get(&path) {
                Some((known, objects)) if *known == stamp => Arc::clone(objects),
                _ => read_file(&path, &stamp)?.into(),
            };
            files.insert(path, (stamp, objects));
        }
        let objects = files.iter().flat_map(|(path, (_, objects))| {
            let path = path.as_path();
            objects.iter().map(move |object| (path, object))
        });
        let view = object::view(objects).map_err(|(path, error)| ManifestError::Object {
            path: path.to_owned(),
            error,
        })?;
        self.files = files;
        Ok(Some(view))
    }

    fn entries(&self) -> Result<Vec<PathBuf>, ManifestError> {
        let wrong = |error| ManifestError::Read {
            path: self.directory.clone(),
            error,
        };
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden && matches!(extension, Some("yaml" | "yml" | "json")) {
                entries.push(path);
            }
            if entries.len() > FILES_MAX {
                return Err(ManifestError::Count {
                    path: self.directory.clone(),
                });
            }
        }
        Ok(entries)
    }

    /// Reads changed files periodically, and calls `changed` with each view until it returns false. Blocks its thread.
    pub(crate) fn watch(mut self, failed: &SourceFailures, mut changed: impl FnMut(View) -> bool) {
        let mut problem = String::new();
        loop {
            std::thread::park_timeout(PERIOD);
            match self.read() {
                Ok(None) => {}
                Ok(Some(view)) => {
                    problem.clear();
                    if !changed(view) {
                        return;
                    }
                }
                Err(error) => {
                    let counter = match error {
                        ManifestError::Read { .. } => &failed.unreachable,
                        _ => &failed.unusable,
                    };
                    let error = error.to_string();
                    if error != problem {
                        counter.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(error, "invalid manifest; the last view stays in use");
                        problem = error;
                    }
                }
            }
        }
    }
}

impl Stamp {
    fn of(data: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self {
            modified: data.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            bytes: data.len(),
            inode: data.ino(),
        }
    }
}

fn read_file(path: &Path, stamp: &Stamp) -> Result<Vec<Object>, ManifestError> {
    if stamp.bytes > BYTES_MAX {
        return Err(ManifestError::Size {
            path: path.to_owned(),
        });
    }
    let text = fs::read_to_string(path).map_err(|error| ManifestError::Read {
        path: path.to_owned(),
        error,
    })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Object>, ManifestError> {
    serde_saphyr::from_multiple(text).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |location| location.line());
        let at = usize::try_from(line).unwrap_or(1).saturating_sub(1);
        let shown = text.lines().nth(at).unwrap_or_default().trim();
        let message = error.to_string();
        let why = message.split_once(": ").map_or(&*message, |(_, why)| why);
        ManifestError::Content {
            path: path.to_owned(),
            line,
            text: shown.chars().take(80).collect(),
            why: why.lines().next().unwrap_or_default().to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::view::RevisionName;

    const REVISION: &str = "\
apiVersion: serving.knative.dev/v1
kind: Revision
metadata:
  namespace: default
  name: f-00001
  labels: {serving.knative.dev/service: f, serving.knative.dev/configuration: f}
  annotations: {weir.dev/slo: 200ms, other.dev/key: x}
spec:
  containerConcurrency: 2
  timeoutSeconds: 60
  containers: [{image: example/f}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: default
  name: f-00001-private-abc
  labels: {kubernetes.io/service-name: f-00001-private}
addressType: IPv4
ports: [{name: http, port: 8012}, {name: http-autometric, port: 9090}]
endpoints:
- {addresses: [10.0.0.1], conditions: {ready: true}}
- {addresses: [10.0.0.2], conditions: {ready: false}}
- {addresses: [10.0.0.3], conditions: {ready: false, terminating: true}}
";

    fn write(directory: &Path, name: &str, text: &str) {
        let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.persist(directory.join(name)).unwrap();
    }

    #[test]
    fn a_view_is_made_of_revisions_and_of_the_slices_of_their_private_services() {
        let directory = tempfile::tempdir().unwrap();
        let mut manifests = Manifests::new(directory.path().to_owned());
        assert_eq!(manifests.read().unwrap(), Some(View::default()));
        write(directory.path(), "f.yaml", REVISION);
        let view = manifests.read().unwrap().unwrap();
        let name = RevisionName {
            namespace: "default".to_owned(),
            name: "f-00001".to_owned(),
        };
        let revision = &view.revisions[&name];
        assert_eq!(revision.concurrency(), Some(2));
        assert_eq!(revision.timeout, Duration::from_secs(60));
        assert_eq!(revision.settings.slo, Some(Duration::from_millis(200)));
        assert_eq!(
            (revision.label(), revision.settings.problems.len()),
            ("f", 0)
        );
        let pods: Vec<_> = revision
            .pods
            .iter()
            .map(|(at, pod)| (at.to_string(), pod.is_ready))
            .collect();
        let expected = [
            ("10.0.0.1:8012".to_owned(), true),
            ("10.0.0.2:8012".to_owned(), false),
        ];
        assert_eq!(pods, expected);
        assert_eq!(manifests.read().unwrap(), None);
        fs::remove_file(directory.path().join("f.yaml")).unwrap();
        assert_eq!(manifests.read().unwrap(), Some(View::default()));
    }

    #[test]
    fn invalid_manifests_are_named_with_file_line_and_text_and_the_view_stays() {
        let directory = tempfile::tempdir().unwrap();
        let mut manifests = Manifests::new(directory.path().to_owned());
        write(directory.path(), "f.yaml", REVISION);
        manifests.read().unwrap();
        for (from, to, expected) in [
            (
                "containerConcurrency: 2",
                "containerConcurrency: many",
                "g.yaml: line 9: \"containerConcurrency: many\": ",
            ),
            (
                "timeoutSeconds: 60",
                "timeoutSeconds: -1",
                "g.yaml: line 10: \"timeoutSeconds: -1\": ",
            ),
            (
                "  name: f-00001\n",
                "",
                "g.yaml: Revision default/: metadata.name is missing",
            ),
            (
                "addresses: [10.0.0.1]",
                "addresses: [10.0.0.256]",
                "g.yaml: EndpointSlice default/f-00001-private-abc: endpoints[0].addresses[0] is \"10.0.0.256\": an IP \
                 address is needed",
            ),
            ("kind: Revision", "kind: [", "g.yaml: line "),
        ] {
            write(directory.path(), "g.yaml", &REVISION.replacen(from, to, 1));
            let error = manifests.read().unwrap_err().to_string();
            let prefix = format!("{}/", directory.path().display());
            assert!(
                error.strip_prefix(&prefix).unwrap().starts_with(expected),
                "{error}"
            );
        }
        write(directory.path(), "g.yaml", "");
        assert!(manifests.read().unwrap().is_some());
    }
}
