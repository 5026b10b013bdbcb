//! `/metrics`, `/healthz`, `/readyz` and `/version`, in plain text.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Shared;

pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>, end: CancellationToken) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/version", get(|| async { concat!(env!("CARGO_PKG_VERSION"), "\n") }))
        .route("/metrics", get(metrics))
        .with_state(shared);
    let served = axum::serve(listener, app).with_graceful_shutdown(end.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "metrics and health are not served any more");
    }
}

/// Ready when the caches are filled: whoever waits for the lease is ready too.
async fn ready(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let synced = futures::FutureExt::now_or_never(shared.caches.synced()).is_some();
    if synced {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let figures = &shared.metrics;
    figures
        .clusters
        .set(i64::try_from(shared.caches.clusters.len()).unwrap_or(i64::MAX));
    figures.each_cluster.set(&shared.caches.clusters.all());
    figures
        .backups
        .set(&shared.caches.backups.all(), jiff::Timestamp::now());
    figures.leads.set(i64::from(shared.tenure.holds()));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], figures.text())
}
