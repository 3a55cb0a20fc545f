//! Capture and graphs.

use super::functions;

functions! { TABLE:
}
