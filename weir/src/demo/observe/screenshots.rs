//! Pictures of the pages, by Debian's Chromium.

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

/// The program, as `PATH` finds it.
const PROGRAM: &str = "chromium";
/// A telephone's width, and a desk's, in CSS pixels.
const WIDTHS: [u32; 2] = [375, 1_440];
/// About what a panel takes of a page's height, and what is around them.
const PANEL_HEIGHT: usize = 430;
const REST_HEIGHT: usize = 600;
/// A picture is taken within this time.
const PICTURE_MAX: Duration = Duration::from_secs(60);

/// Whether there is a Chromium.
///
/// # Errors
/// There is none; the text names Debian's package.
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

/// Takes `UID-WIDTH.png` of each page in `pages`.
///
/// # Errors
/// A folder that cannot be made, or a picture that is not taken.
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
                // There is nothing to be kept from: the page is ours and fetches nothing.
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
                        "{PROGRAM} took no picture of {}: {status}",
                        page.display()
                    );
                }
                Err(_) => bail!(
                    "{PROGRAM} took no picture of {} in {PICTURE_MAX:?}",
                    page.display()
                ),
            }
        }
    }
    Ok(())
}
