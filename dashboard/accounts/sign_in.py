"""Signing in, with a lock-out that grows: guessing passwords and codes is slow, and seen in the audit.

Guarantees that after four failed attempts for a name from one address the next one waits, for 15 s, then twice as long each
time, up to 15 min. One more is kept for a browser that has had the page open for `PAGE_SECONDS`: a program that tries
passwords as fast as it can does not get that, a person does, behind the same address and in a browser never seen before. A program
that opens the page and waits like a person gets it too: it can lock a name out for new browsers of its own network. A try is counted before the password is looked at, so that tries sent at once are no more than tries
sent one after the other. However a name is spelled, it is one name; an IPv6 network of 64 bits is one address, and a
network of 48 bits (24 of IPv4) has 20 tries for a name. Does not lock anybody out from elsewhere: where an address or
the whole world has tried too much, each name still has one try from each address, so that the right password, and the
right code after it, get in. A browser that has signed in before has tries of its own, whatever others do to the name.
Wrong codes of the second factor count for the person, from wherever: who gets to try them knows the password.
Single sign-on counts nothing here: its provider does.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.internal.flows.reauthentication import get_reauthentication_flows
from allauth.account.models import Login
from allauth.account.views import ReauthenticateView
from allauth.mfa.base.views import AuthenticateView
from allauth.mfa.base.views import ReauthenticateView as ReauthenticateByCodeView
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.core import signing
from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts.hashing import Asker, Busy, asker
from dashboard.accounts.single_sign_on import PROVIDER
from dashboard.core import audit
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, SignInTries

FREE_TRIES = 4
RESERVED_TRIES = 1
PAGE_COOKIE = "kennel_page"
PAGE_SECONDS = 3.0
PAGE_VALID_SECONDS = 3600
FREE_TRIES_OF_NETWORK = 20
FREE_TRIES_OF_ADDRESS = 30
FREE_TRIES_OF_NAME = 50
FIRST_LOCK_SECONDS = 15.0
LONGEST_LOCK_SECONDS = 900.0
FORGET_SECONDS = 3600.0
BUSY_SECONDS = 5
KNOWN_COOKIE = "kennel_known"
KNOWN_SECONDS = 180 * 86400
UNKNOWN_NAME = "nobody"


@dataclass
class AttemptLimits:
    """What a try counts for: `locks` are keys with their free tries, the first of which gets but one while any of
    `pressure` (keys with what they bear) has had too many. `reserved` is a key with `RESERVED_TRIES` of its own, which count
    when a lock is closed; "" for none."""

    locks: tuple[tuple[str, int], ...]
    pressure: tuple[tuple[str, int], ...] = ()
    reserved: str = ""
    is_reserved: bool = field(default=False, init=False)

    def reserve(self) -> float:
        """Count a try before it is looked at; how long it has to wait instead, 0 for not at all."""
        now = time.time()
        with transaction.atomic():
            SignInTries.objects.filter(last_at__lt=now - FORGET_SECONDS).delete()
            rows = {
                key: self._row(key, now) for key in sorted({key for key, _ in self.locks + self.pressure})
            }
            waits = max(rows[key].locked_until - now for key, _ in self.locks)
            if waits > 0:
                self.is_reserved = self._may_use_reserved(now)
                return 0.0 if self.is_reserved else waits
            is_hot = any(rows[key].tries >= most for key, most in self.pressure)
            for number, (key, free) in enumerate(self.locks):
                row = rows[key]
                row.locked_until = now + lock_seconds(row.tries + 1, 1 if is_hot and number == 0 else free)
            for row in rows.values():
                row.tries += 1
                row.last_at = now
                row.save()
        return 0.0

    def forget(self) -> None:
        """It was right: the name's tries begin again, and the others are as if it had not been."""
        SignInTries.objects.filter(key__in=[self.reserved, *(key for key, _ in self.locks)]).delete()
        if not self.is_reserved:
            self._less(key for key, _ in self.pressure)

    def undo(self) -> None:
        """It was not looked at."""
        own = [self.reserved] if self.is_reserved else [key for key, _ in self.locks]
        SignInTries.objects.filter(key__in=own).update(locked_until=0.0)
        self._less(own if self.is_reserved else (*own, *(key for key, _ in self.pressure)))

    def _may_use_reserved(self, now: float) -> bool:
        if not self.reserved:
            return False
        row = self._row(self.reserved, now)
        if row.locked_until > now:
            return False
        row.locked_until = now + lock_seconds(row.tries + 1, RESERVED_TRIES)
        row.tries, row.last_at = row.tries + 1, now
        row.save()
        return True

    def _row(self, key: str, now: float) -> SignInTries:
        return SignInTries.objects.select_for_update().get_or_create(key=key, defaults={"last_at": now})[0]

    def _less(self, keys: Any) -> None:
        rows = SignInTries.objects.filter(key__in=list(keys))
        rows.filter(tries__lte=1).delete()
        rows.update(tries=F("tries") - 1)


def lock_seconds(tries: int, free: int) -> float:
    """How long to wait after so many failed attempts."""
    if tries < free:
        return 0.0
    return min(LONGEST_LOCK_SECONDS, FIRST_LOCK_SECONDS * 2.0 ** min(tries - free, 20))


def tries_of(name: str, address: str, known: str = "", *, is_page_open: bool = False) -> AttemptLimits:
    """What a try of a name from an address counts for; `known` is the browser, if it has signed in with it before,
    `is_page_open` whether it has had the page open for a while."""
    if known:
        return AttemptLimits(((_key("known", known), FREE_TRIES),))
    who = one_name(name)
    block, network = blocks_of(address)
    return AttemptLimits(
        ((_key("name", who, block), FREE_TRIES), (_key("name", who, network), FREE_TRIES_OF_NETWORK)),
        ((_key("address", block), FREE_TRIES_OF_ADDRESS), (_key("name", who), FREE_TRIES_OF_NAME)),
        # Of the whole network: who can choose among addresses must not multiply it.
        _key("page", who, network) if is_page_open else "",
    )


def one_name(name: str) -> str:
    """However it is spelled: wide, composed or in capitals."""
    return unicodedata.normalize("NFKC", name).strip().casefold()


def blocks_of(address: str) -> tuple[str, str]:
    """What one machine can choose among freely, and the network around it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address, address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    widths = (32, 24) if parsed.version == 4 else (64, 48)
    small, large = (str(ipaddress.ip_network(f"{parsed}/{width}", strict=False)) for width in widths)
    return small, large


class ThrottledFormMixin:
    """A form view behind the lock: `tries` is what a try counts for, `who` the name for the audit. By default the user who is signed in."""

    request: HttpRequest

    def tries(self) -> AttemptLimits:
        return tries_of(self.who(), address_of(self.request), _known(self.request, self.person()))

    def who(self) -> str:
        return str(self.person().get_username())

    def person(self) -> Any:
        """The user whom this is about; None if there is none of that name."""
        return self.request.user

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        known = _known(request, self.person())
        self.counted = self.tries()
        waits = self.counted.reserve()
        if waits > 0:
            return self.refused(429, max(1, round(waits)), locked_seconds=max(1, round(waits)))
        token = asker.set(Asker(blocks_of(address_of(request))[1], bool(known)))
        try:
            answer: HttpResponse = super().post(request, *args, **kwargs)  # type: ignore[misc]
        except Busy:
            self.counted.undo()
            return self.refused(503, BUSY_SECONDS, is_busy=True)
        finally:
            asker.reset(token)
        return answer

    def refused(self, status: int, seconds: int, **more: Any) -> HttpResponse:
        response = self.unbound(**more)
        response.status_code = status
        response["Retry-After"] = str(seconds)
        return response

    def get_form(self, *args: Any) -> Any:
        """The cursor begins in the first field."""
        form = super().get_form(*args)  # type: ignore[misc]
        next(iter(form.fields.values())).widget.attrs["autofocus"] = True
        return form

    def unbound(self, **more: Any) -> HttpResponse:
        """The page with a form that has not looked at what was sent."""
        view: Any = self
        form = view.get_form_class()(**{**view.get_form_kwargs(), "data": None, "files": None})
        answer: HttpResponse = view.render_to_response(view.get_context_data(form=form, **more))
        return answer

    def form_valid(self, form: Any) -> HttpResponse:
        self.counted.forget()
        answer: HttpResponse = super().form_valid(form)  # type: ignore[misc]
        return _remembered(self.request, answer)

    def form_invalid(self, form: Any) -> HttpResponse:
        name = self.who()
        audit.denied(Actor(name, "", address_of(self.request), request_id_var.get()), "sign_in", name)
        answer: HttpResponse = super().form_invalid(form)  # type: ignore[misc]
        return answer


class SignIn(ThrottledFormMixin, LoginView):
    """Name and password; then the second factor, for those who have one."""

    template_name = "accounts/sign_in.html"
    redirect_authenticated_user = True

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        answer: HttpResponse = super().get(request, *args, **kwargs)
        if not _page_opened_at(request):
            _set_cookie(answer, PAGE_COOKIE, {"at": time.time()}, PAGE_VALID_SECONDS)
        return answer

    def tries(self) -> AttemptLimits:
        opened_at, known = _page_opened_at(self.request), _known(self.request, self.person())
        is_open = 0 < opened_at <= time.time() - PAGE_SECONDS
        return tries_of(self.name(), address_of(self.request), known, is_page_open=is_open)

    def name(self) -> str:
        """As Django's form takes it."""
        return unicodedata.normalize("NFKC", str(self.request.POST.get("username", "")))[:150].strip()

    def who(self) -> str:
        """The name, if it is somebody's: people type passwords into the field for names."""
        person = self.person()
        return str(person.get_username()) if person is not None else UNKNOWN_NAME

    def person(self) -> Any:
        return get_user_model().objects.filter(username=self.name().replace("\0", "")).first()

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        self.counted.forget()
        user = form.get_user()
        login = Login(user=user, redirect_url=self.get_success_url())
        answer: HttpResponse = perform_password_login(self.request, {"username": user.get_username()}, login)
        return _remembered(self.request, answer)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        if settings.OIDC["url"]:
            url = reverse("openid_connect_login", args=[PROVIDER])
            asked = urlencode({"next": self.get_redirect_url()}) if self.get_redirect_url() else ""
            context |= {"sso_name": settings.OIDC["name"], "sso_url": f"{url}?{asked}"}
        return context


class SecondFactor(ThrottledFormMixin, AuthenticateView):  # type: ignore[misc]
    """A code of the authenticator, or a recovery code, after the right password."""

    def tries(self) -> AttemptLimits:
        return _tries_of_codes(self.person(), _known(self.request, self.person()))

    def person(self) -> Any:
        return self.stage.login.user

    def unbound(self, **more: Any) -> HttpResponse:
        self.auth_form = self.get_form_class()(user=self.stage.login.user)
        context = {**self.get_context_data(), **more}
        answer: HttpResponse = self.render_to_response(context)
        return answer


class ConfirmPassword(ThrottledFormMixin, ReauthenticateView):  # type: ignore[misc]
    """The password once more, before the second factor is changed or something is destroyed.

    A user without a password here, who signs in by single sign-on, does that once more.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if (
            request.user.is_authenticated
            and settings.OIDC["url"]
            and not get_reauthentication_flows(request.user)
        ):
            asked = {"process": "login", "auth_params": "prompt=login", "next": request.GET.get("next", "/")}
            return redirect(f"{reverse('openid_connect_login', args=[PROVIDER])}?{urlencode(asked)}")
        answer: HttpResponse = super().dispatch(request, *args, **kwargs)
        return answer


class ChangePassword(ThrottledFormMixin, PasswordChangeView):
    """One's own password. All other sessions end, and sockets that they opened close within seconds."""

    template_name = "accounts/password.html"

    def get_success_url(self) -> str:
        return reverse("access")

    def form_valid(self, form: Any) -> HttpResponse:
        row = audit.intent(Actor.from_request(self.request), "password.change", self.who())
        answer = super().form_valid(form)
        audit.outcome(row, AuditOutcome.DONE)
        messages.success(self.request, "Your password is changed. All other sessions have ended.")
        return answer

    def form_invalid(self, form: Any) -> HttpResponse:
        if "old_password" in form.errors:
            return super().form_invalid(form)
        self.counted.forget()  # the password was right, the new one is not good enough
        return self.render_to_response(self.get_context_data(form=form))


class ConfirmCode(ThrottledFormMixin, ReauthenticateByCodeView):  # type: ignore[misc]
    """A code once more, before the second factor is changed or something is destroyed."""

    def tries(self) -> AttemptLimits:
        return _tries_of_codes(self.person(), _known(self.request, self.person()))


def address_of(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR") or "")


def _tries_of_codes(user: Any, known: str) -> AttemptLimits:
    return AttemptLimits(((_key("code", str(user.pk), known), FREE_TRIES),))


def _key(*parts: str) -> str:
    # A digest, because people type passwords into the field for names.
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def _known(request: HttpRequest, user: Any) -> str:
    """Which browser this is, if this person has signed in with it since their password was set; else ""."""
    if user is None:
        return ""
    try:
        fields = signing.loads(
            request.COOKIES.get(KNOWN_COOKIE, ""), salt=KNOWN_COOKIE, max_age=KNOWN_SECONDS
        )
    except signing.BadSignature:
        return ""
    same = fields.get("user") == user.pk and fields.get("since") == user.get_session_auth_hash()[:20]
    return str(fields.get("browser", "")) if same else ""


def _page_opened_at(request: HttpRequest) -> float:
    """When this browser opened the page; 0 if that is not known, or long ago."""
    given = request.COOKIES.get(PAGE_COOKIE, "")
    try:
        return float(signing.loads(given, salt=PAGE_COOKIE, max_age=PAGE_VALID_SECONDS)["at"])
    except signing.BadSignature:
        return 0.0


def _set_cookie(answer: HttpResponse, name: str, fields: dict[str, Any], seconds: int) -> None:
    """Signed, and sent back to the pages of signing in alone."""
    answer.set_cookie(
        name,
        signing.dumps(fields, salt=name),
        max_age=seconds,
        path=reverse("account_login").removesuffix("login/"),
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _remembered(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Let the browser show next time that this person has signed in with it, once they are in by all factors."""
    user = request.user
    if user.is_authenticated and not _known(request, user):
        fields = {
            "user": user.pk,
            "since": user.get_session_auth_hash()[:20],
            "browser": secrets.token_hex(8),
        }
        _set_cookie(answer, KNOWN_COOKIE, fields, KNOWN_SECONDS)
    return answer
