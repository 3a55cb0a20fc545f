//! Screenshots of the pages, by Debian's Chromium.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use dashboards::boards::boards;
use tempfile::TempDir;
use tokio::time::timeout;

use super::super::Program;
use super::super::spawn::Spawn;

/// Program name, found through `PATH`.
const PROGRAM: &str = "chromium";
/// Widths of a phone and a desktop, in CSS pixels.
const WIDTHS: [u32; 2] = [375, 1_440];
/// Approximate height of a panel, and of the rest of a page, in CSS pixels.
const PANEL_HEIGHT: usize = 430;
const REST_HEIGHT: usize = 600;
/// Longest time for one screenshot.
const PICTURE_MAX: Duration = Duration::from_secs(60);

/// Checks that Chromium is installed.
///
/// # Errors
/// Returns an error if Chromium is not installed; its text names Debian's package.
pub(super) fn check() -> anyhow::Result<()> {
    let output = Command::new(PROGRAM)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    output.with_context(|| {
        format!("--screenshots needs the program {PROGRAM}: apt-get install chromium")
    })?;
    Ok(())
}

/// Writes `UID-WIDTH.png` of each page in `pages`.
///
/// # Errors
/// A folder cannot be created, or a screenshot failed.
pub(super) async fn take(pages: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let pages = pages.canonicalize().context("the folder of pages")?;
    let folder = folder.canonicalize().context("the folder of screenshots")?;
    let home = TempDir::new().context("cannot make a folder for Chromium")?;
    for board in boards() {
        let panels: usize = board.rows.iter().map(|row| row.panels.len()).sum();
        let height = REST_HEIGHT + PANEL_HEIGHT * panels;
        for width in WIDTHS {
            let picture = folder.join(format!("{}-{width}.png", board.uid));
            let page = pages.join(format!("{}.html", board.uid));
            let arguments = [
                PROGRAM.to_owned(),
                "--headless".to_owned(),
                // No sandbox is needed: the page is ours and fetches nothing.
                "--no-sandbox".to_owned(),
                "--disable-gpu".to_owned(),
                "--hide-scrollbars".to_owned(),
                format!("--user-data-dir={}", home.path().display()),
                format!("--screenshot={}", picture.display()),
                format!("--window-size={width},{height}"),
                format!("file://{}", page.display()),
            ];
            let mut child = Spawn::new(Program::Foreign)
                .arguments(arguments.map(OsString::from))
                .environment(std::env::var("PATH").ok().map(|path| ("PATH", path)))
                .environment([("HOME", home.path().display().to_string())])
                .stderr(Stdio::null())
                .spawn()?;
            match timeout(PICTURE_MAX, child.wait()).await {
                Ok(status) => {
                    let status = status.context("cannot watch a child")?;
                    let is_there = picture.is_file();
                    ensure!(
                        is_there,
                        "{PROGRAM} took no screenshot of {}: {status}",
                        page.display()
                    );
                }
                Err(_) => bail!(
                    "{PROGRAM} took no screenshot of {} in {PICTURE_MAX:?}",
                    page.display()
                ),
            }
        }
    }
    Ok(())
}
