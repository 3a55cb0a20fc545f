//! Printing, and files that are written as a whole or not at all.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// An HTML page to be written to a file that was writable before the run.
#[derive(Debug)]
pub(crate) struct Destination(PathBuf);

impl Destination {
    /// Creates a destination.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        can_be_written(path)?;
        Ok(Self(path.to_owned()))
    }

    pub(crate) fn write(&self, page: &str) -> anyhow::Result<()> {
        whole_file(&self.0, |to| Ok(to.write_all(page.as_bytes())?))
    }
}

fn cannot(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// Creates a temporary file beside the destination, so that the old content stays until the new is complete.
fn beside(path: &Path) -> anyhow::Result<NamedTempFile> {
    if path.is_dir() {
        anyhow::bail!("{}: is a folder", cannot(path));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        anyhow::bail!(
            "{}: there is no folder {}, and none is made",
            cannot(path),
            folder.display()
        );
    }
    let mut builder = tempfile::Builder::new();
    // Masked by the process's umask, as any other file.
    builder.permissions(Permissions::from_mode(0o666));
    let made = builder.tempfile_in(folder);
    // The error's own text names the temporary file, which the user does not know.
    made.map_err(|error| io::Error::from(error.kind()))
        .with_context(|| cannot(path))
}

/// Returns whether a path is a pipe or a device, which has no old content to preserve.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|own| !own.is_file() && !own.is_dir())
}

/// Checks that a file can be written, before hours are spent on its content.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn can_be_written(path: &Path) -> anyhow::Result<()> {
    if !is_stream(path) {
        drop(beside(path)?);
    }
    Ok(())
}

/// Writes a file as a whole or not at all.
pub(crate) fn whole_file<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let name = || cannot(path);
    if is_stream(path) {
        let mut to = File::options().write(true).open(path).with_context(name)?;
        return write(&mut to).with_context(name);
    }
    let mut beside = beside(path)?;
    let outcome = write(beside.as_file_mut()).with_context(name)?;
    let kept = beside.persist(path).map_err(|error| error.error);
    kept.with_context(name)?;
    Ok(outcome)
}

/// Prints a text without trailing blanks, and a newline, to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end())?;
    stdout.flush()
}
