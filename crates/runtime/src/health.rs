//! `/metrics`, `/healthz`, `/readyz` and `/version`, in plain text.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What is asked about an operator.
pub trait Health: Send + Sync + 'static {
    /// Its caches are filled: whoever waits for the lease is ready too.
    fn is_ready(&self) -> bool;

    /// Its metrics, in Prometheus' text format.
    fn metrics(&self) -> String;
}

/// Answers until told to end.
pub async fn serve<H: Health>(listener: TcpListener, health: Arc<H>, end: CancellationToken) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready::<H>))
        .route("/version", get(|| async { concat!(env!("CARGO_PKG_VERSION"), "\n") }))
        .route("/metrics", get(metrics::<H>))
        .with_state(health);
    let served = axum::serve(listener, app).with_graceful_shutdown(end.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "metrics and health are not served any more");
    }
}

async fn ready<H: Health>(State(health): State<Arc<H>>) -> impl IntoResponse {
    if health.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

async fn metrics<H: Health>(State(health): State<Arc<H>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], health.metrics())
}
